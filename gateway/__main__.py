"""`python -m gateway`: one gateway."""

import asyncio
import contextlib
import gc
import logging
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from gateway.app import make_app
from gateway.config import GatewaySettings
from gateway.connection import Connection
from paceline.rpc.server import DRAIN_S, require_free_address, run, wait_for_signal
from paceline.settings import parse_settings

log = logging.getLogger(__name__)
# Longer than clients keep an idle connection (httpx: 5 s): one that is closed as a request goes out fails it.
KEEP_ALIVE_S = 75


class Server(uvicorn.Server):
    """One that leaves signals to us: its own way ends by raising them again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: GatewaySettings) -> None:
    """Serves until SIGTERM or SIGINT, then lets open requests end. Raises ConfigError where it can't begin."""
    require_free_address(settings.listen)
    options: dict[str, Any] = {
        "lifespan": "on", "ws": "none", "log_config": None, "access_log": False, "server_header": False,
        "proxy_headers": False, "timeout_keep_alive": KEEP_ALIVE_S, "timeout_graceful_shutdown": int(DRAIN_S),
    }  # fmt: skip
    if settings.listen.startswith("unix:"):
        sockets, options["uds"], where = None, settings.listen.removeprefix("unix:"), settings.listen
    else:
        sockets = [_bind(settings.listen)]
        where = f"http://{settings.listen.rpartition(':')[0]}:{sockets[0].getsockname()[1]}"
    config = uvicorn.Config(make_app(settings), http=Connection, **options)
    # Where it listens we say ourselves.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    # What stands by now stays: the garbage collector need not go through it again and again.
    gc.collect()
    gc.freeze()
    log.info("gateway: listening on %s", where)
    ending = asyncio.create_task(wait_for_signal())
    await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
    log.info("gateway: draining for up to %.0f s", DRAIN_S)
    server.should_exit = True
    await serving


def _bind(listen: str) -> socket.socket:
    """A socket of our own, so that port 0 can be told. `require_free_address` has looked at the address."""
    host, _, port = listen.rpartition(":")
    family, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(address)
    return bound


def main() -> None:
    settings = parse_settings(GatewaySettings, "gateway")
    run(lambda: serve(settings))


if __name__ == "__main__":
    main()
