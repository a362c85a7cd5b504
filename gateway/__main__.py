"""Starts a gateway: `python -m gateway`."""

import asyncio
import contextlib
import gc
import logging
import resource
import socket
import ssl
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette

from gateway.app import make_app
from gateway.config import GatewaySettings
from gateway.http import CONNECTIONS_PER_REQUEST, Connections, HttpConnection
from paceline.observability.exposition import exposed
from paceline.observability.traces import traced
from paceline.rpc.server import DRAIN_S, require_free_address, run, wait_for_signal
from paceline.rpc.tls import Tls
from paceline.settings import parse_settings

log = logging.getLogger(__name__)
# Longer than clients keep idle connections (httpx: 5 s): a request sent on a connection that closes fails.
KEEP_ALIVE_S = 75
# For coordinators, logs and files, beside the clients' connections.
OTHER_FILES = 256


class GatewayServer(uvicorn.Server):
    """Leaves signals to `serve`: uvicorn would raise them again."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(settings: GatewaySettings) -> None:
    """Serves until SIGTERM or SIGINT, then drains. Raises ConfigError."""
    with traced(settings.traces, "gateway") as spans:
        app = make_app(settings, spans)
        with exposed(app.state.exposition, settings.metrics, "gateway"):
            await _serve(settings, app)


async def _serve(settings: GatewaySettings, app: Starlette) -> None:
    require_free_address(settings.listen)
    options: dict[str, Any] = {
        "lifespan": "on", "ws": "none", "log_config": None, "access_log": False, "server_header": False,
        "proxy_headers": False, "timeout_keep_alive": KEEP_ALIVE_S, "timeout_graceful_shutdown": int(DRAIN_S),
    }  # fmt: skip
    if settings.tls:
        # Loaded before listening, so that a bad file fails early.
        context = reloading_context(settings.tls)
        options["ssl_context_factory"] = lambda config, default: context
    if settings.listen.startswith("unix:"):
        sockets, options["uds"], address = None, settings.listen.removeprefix("unix:"), settings.listen
    else:
        sockets = [_bind(settings.listen)]
        scheme, host = "https" if settings.tls else "http", settings.listen.rpartition(":")[0]
        address = f"{scheme}://{host}:{sockets[0].getsockname()[1]}"
    connections = Connections(_max_connections(settings.max_open_requests))
    config = uvicorn.Config(app, http=partial(HttpConnection, connections=connections), **options)  # type: ignore[arg-type]
    # Logged below.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    server = GatewayServer(config)
    serving = asyncio.create_task(server.serve(sockets))
    while not server.started and not serving.done():
        await asyncio.sleep(0.01)
    # Exclude objects made at startup from garbage collection.
    gc.collect()
    gc.freeze()
    log.info("gateway: listening on %s (%s)", address, settings.tls.said)
    ending = asyncio.create_task(wait_for_signal())
    await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
    log.info("gateway: draining for up to %.0f s", DRAIN_S)
    server.should_exit = True
    await serving


def reloading_context(tls: Tls) -> ssl.SSLContext:
    """Serves the files' current certificates. Raises ConfigError."""
    contexts = tls.reloaded(tls.server_context)
    first = contexts.value

    def use_newest(connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        contexts.newer()
        if contexts.value is not first:
            connection.context = contexts.value

    first.sni_callback = use_newest
    return first


def _max_connections(max_open_requests: int) -> int:
    """Raises the process's limit of open files as far as it may, and returns how many are left for connections."""
    wanted = CONNECTIONS_PER_REQUEST * max_open_requests
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted + OTHER_FILES:
        soft = wanted + OTHER_FILES if hard == resource.RLIM_INFINITY else min(hard, wanted + OTHER_FILES)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        wanted = min(wanted, max(1, soft - OTHER_FILES))
    return wanted


def _bind(listen: str) -> socket.socket:
    """Binds here, not in uvicorn, to learn the port chosen for 0."""
    host, _, port = listen.rpartition(":")
    family, *_, address = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
    bound = socket.socket(family, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(address)
    return bound


def main() -> None:
    settings = parse_settings(GatewaySettings, "gateway")
    run(lambda: serve(settings), settings.log_format, settings.log_level)


if __name__ == "__main__":
    main()
