"""Addresses, limits of messages, and channels to servers."""

import asyncio
import os
import re

import grpc.aio

from paceline.errors import InvalidArgument
from paceline.rpc.tls import Reloaded, Tls

# The largest message either side takes. Senders split well below it: what is repeated, behind SPLIT_BYTES or SPLIT_POSITIONS
# (positions with log-probabilities, 150 bytes each with 20 likeliest tokens).
MAX_MESSAGE_BYTES = 16 << 20
SPLIT_BYTES = 1 << 20
SPLIT_POSITIONS = 2048
# A larger command is not sent: with what else may be in its message it would come near the limit, where gRPC ends the stream
# that all generations share.
MAX_COMMAND_BYTES = 8 << 20
# In one message to a model server: each of them costs time on its event loop.
MAX_COMMANDS = 4096

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # A peer that vanished without a word is noticed within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
SERVER_OPTIONS = [*_OPTIONS, ("grpc.so_reuseport", 0)]
CLIENT_OPTIONS = [
    *_OPTIONS,
    # A server that was restarted is found again soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # How long one attempt to connect may take: a busy server is slow to answer, and one that is gone refuses at once.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # Two channels to one address are two connections.
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy and its like mean the way out of a network, not the way between services.
    ("grpc.enable_http_proxy", 0),
]

# Longer paths the kernel does not take for a socket.
MAX_SOCKET_PATH_BYTES = 107
# gRPC takes addresses for URIs, and a comma for the end of one: it can't call such a path, or takes it for another.
_NOT_IN_SOCKET_PATHS = re.compile("[,#?%]|^//(?!/)")
MAX_PORT = 65_535
# A name or an IPv4 address, or an IPv6 address in brackets.
_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[\w.:%]+\]):(\d{1,5})", re.ASCII)


def check_address(name: str, address: str, is_listening: bool = False) -> None:
    """Raises InvalidArgument naming the option `name` unless `address` is HOST:PORT or unix:PATH.

    A server that listens may ask for port 0: any free port.
    """
    lowest = 0 if is_listening else 1
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        ok = 0 < len(os.fsencode(path)) <= MAX_SOCKET_PATH_BYTES and path.isprintable()
        ok = ok and not _NOT_IN_SOCKET_PATHS.search(path)
    else:
        found = _HOST_AND_PORT.fullmatch(address)
        ok = found is not None and lowest <= int(found[1]) <= MAX_PORT
    if not ok:
        allowed = (
            f"HOST:PORT or unix:PATH, with a port in [{lowest}, {MAX_PORT}] "
            f"and a path of at most {MAX_SOCKET_PATH_BYTES} bytes without any of , # ? % (unix:// needs an absolute PATH)"
        )
        raise InvalidArgument.of_value(name, address, allowed)


NO_TLS = Tls()


def open_channel(address: str, tls: Tls = NO_TLS) -> grpc.aio.Channel:
    """A channel to HOST:PORT or unix:PATH, with what the files of `tls` hold now. Raises ConfigError for bad ones."""
    if not tls:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=tls_options(address))


def tls_options(address: str) -> list[tuple[str, int | str]]:
    """A certificate is for names and IP addresses: a socket of this machine is called localhost."""
    name = [("grpc.ssl_target_name_override", "localhost")] if address.startswith("unix:") else []
    return [*CLIENT_OPTIONS, *name]


# How long a channel that was replaced stays open for the calls in flight.
LINGER_S = 3600.0


class Connection:
    """For one event loop."""

    def __init__(self, address: str, tls: Tls) -> None:
        """Raises ConfigError for bad files."""
        self._channels = Reloaded(tls, lambda: open_channel(address, tls))
        self._replaced: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    @property
    def channel(self) -> grpc.aio.Channel:
        """For a call that begins now: one with the certificates that the files hold. Calls in flight keep theirs."""
        before = self._channels.value
        if self._channels.newer() is not None:
            closing = asyncio.create_task(_close_later(before))
            self._replaced[closing] = before
            closing.add_done_callback(self._replaced.pop)
        return self._channels.value

    async def close(self) -> None:
        """Ends calls in flight."""
        for closing, channel in list(self._replaced.items()):
            closing.cancel()
            await channel.close()
        await self._channels.value.close()


async def _close_later(channel: grpc.aio.Channel) -> None:
    # Not `close(grace)`: whom it lets go on nobody can end any more.
    await asyncio.sleep(LINGER_S)
    await channel.close()
