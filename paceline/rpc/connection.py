"""A client's connection to one server: a channel, and another one when its certificates change."""

import asyncio

import grpc.aio

from paceline.rpc.channel import open_channel
from paceline.rpc.tls import Reloaded, Tls

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
