"""Addresses, limits of messages, and channels to servers."""

import asyncio
import os
import re

import grpc.aio

from paceline.errors import InvalidArgument
from paceline.rpc.tls import Tls

# Where services listen, and others look for them, unless told otherwise.
COORDINATOR_ADDRESS, DRAFT_ADDRESS, TARGET_ADDRESS = "127.0.0.1:50050", "127.0.0.1:50051", "127.0.0.1:50052"
# The largest message either side accepts. Senders split repeated fields well below it: after SPLIT_BYTES, or after
# SPLIT_POSITIONS positions with log-probabilities.
MAX_MESSAGE_BYTES = 16 << 20
SPLIT_BYTES = 1 << 20
SPLIT_POSITIONS = 2048
# Larger commands are refused: with others in its message one would come near the limit, at which gRPC ends the stream that
# all generations share.
MAX_COMMAND_BYTES = 8 << 20
# Per message to a model server: each command takes time on its event loop.
MAX_COMMANDS = 4096

_OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    # Notice a peer that vanished within 40 s.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]
SERVER_OPTIONS = [*_OPTIONS, ("grpc.so_reuseport", 0)]
CLIENT_OPTIONS = [
    *_OPTIONS,
    # Find a restarted server soon.
    ("grpc.initial_reconnect_backoff_ms", 100),
    # Timeout of one connection attempt: a busy server answers slowly.
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
    # One connection per channel.
    ("grpc.use_local_subchannel_pool", 1),
    # http_proxy is for the way out of a network, not between services.
    ("grpc.enable_http_proxy", 0),
]

# The kernel's limit for a socket's path.
MAX_SOCKET_PATH_BYTES = 107
# gRPC parses addresses as URIs, separated by commas: it misreads such paths.
_NOT_IN_SOCKET_PATHS = re.compile("[,#?%]|^//(?!/)")
MAX_PORT = 65_535
# A name or an IPv4 address, or an IPv6 address in brackets.
_HOST_AND_PORT = re.compile(r"(?:[\w.-]+|\[[\w.:%]+\]):(\d{1,5})", re.ASCII)


def check_address(name: str, address: str, is_listening: bool = False) -> None:
    """Raises InvalidArgument naming the option `name` unless `address` is HOST:PORT or unix:PATH.

    A listening server may ask for port 0: any free port.
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
    if not tls:
        return grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
    return grpc.aio.secure_channel(address, tls.channel_credentials(), options=tls_options(address, tls))


def tls_options(address: str, tls: Tls) -> list[tuple[str, int | str]]:
    """Calls a unix socket localhost, since certificates name hosts."""
    name = "localhost" if address.startswith("unix:") else tls.server_name
    return [*CLIENT_OPTIONS, *([("grpc.ssl_target_name_override", name)] if name else [])]


# How long a replaced channel stays open for calls in flight.
LINGER_S = 3600.0


class ReloadingChannel:
    """A channel, replaced when the certificate files change. For one event loop."""

    def __init__(self, address: str, tls: Tls) -> None:
        self._channels = tls.reloaded(lambda: open_channel(address, tls))
        self._replaced: dict[asyncio.Task[None], grpc.aio.Channel] = {}

    @property
    def channel(self) -> grpc.aio.Channel:
        """The channel for a new call, with current certificates. Calls in flight keep theirs."""
        before = self._channels.value
        if self._channels.newer() is not None:
            closing = asyncio.create_task(_close_later(before))
            self._replaced[closing] = before
            closing.add_done_callback(self._replaced.pop)
        return self._channels.value

    async def close(self) -> None:
        for closing, channel in list(self._replaced.items()):
            closing.cancel()
            await channel.close()
        await self._channels.value.close()


async def _close_later(channel: grpc.aio.Channel) -> None:
    # Not `close(grace)`: nobody could end the calls that it lets finish.
    await asyncio.sleep(LINGER_S)
    await channel.close()
