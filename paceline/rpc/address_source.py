"""Lists of servers: addresses, a name in DNS, or a file.

Whoever starts processes writes the list; nothing here knows how they are started.
"""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path

from paceline.errors import InvalidArgument, PacelineError, Unavailable
from paceline.rpc.channel import check_address

log = logging.getLogger(__name__)
# Interval at which names are resolved and files are read.
INTERVAL_S = 0.5
DNS, FILE = "dns:", "file:"


class AddressSource:
    """Servers of one kind, from `HOST:PORT,unix:PATH,...`, `dns:NAME:PORT` or `file:PATH` with one address a line."""

    def __init__(self, name: str, text: str) -> None:
        """Raises InvalidArgument naming the option `name`."""
        self._name = name
        self.text = text
        if text.startswith(FILE):
            if not text.removeprefix(FILE):
                raise InvalidArgument.of_value(name, text, "file:PATH")
        elif text.startswith(DNS):
            check_address(name, text.removeprefix(DNS))
        else:
            self._addresses = _checked(name, text.split(","))

    @property
    def is_fixed(self) -> bool:
        return not self.text.startswith((DNS, FILE))

    async def read(self) -> list[str]:
        """Returns the addresses now. Raises Unavailable if the source can't be read or has none."""
        if self.is_fixed:
            return self._addresses
        try:
            addresses = await (self._resolve() if self.text.startswith(DNS) else asyncio.to_thread(self._read_file))
        except (OSError, ValueError, PacelineError) as error:
            raise Unavailable(f"{self._name}: {self.text} can't be read: {error}") from error
        if not addresses:
            raise Unavailable(f"{self._name}: {self.text} has no addresses")
        return addresses

    async def wait(self, timeout_s: float) -> list[str]:
        """Returns the addresses as soon as there are any. Raises Unavailable."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            try:
                return await self.read()
            except Unavailable:
                if time.monotonic() > deadline_s:
                    raise
            await asyncio.sleep(INTERVAL_S)

    async def changes(self) -> AsyncGenerator[list[str], None]:
        """Yields the addresses whenever they have changed. They stay as they are while the source can't be read."""
        last: list[str] = []
        is_failing = False
        while True:
            try:
                addresses = await self.read()
                is_failing = False
            except Unavailable as error:
                addresses = last
                if not is_failing:
                    log.warning("%s; nothing changes until it can be", error)
                is_failing = True
            if sorted(addresses) != sorted(last):
                last = addresses
                yield addresses
            if self.is_fixed:
                return
            await asyncio.sleep(INTERVAL_S)

    async def _resolve(self) -> list[str]:
        host, _, port = self.text.removeprefix(DNS).rpartition(":")
        found = await asyncio.get_running_loop().getaddrinfo(host, int(port), type=socket.SOCK_STREAM)
        # A server with an address of each family is one endpoint.
        found = [each for each in found if each[0] == socket.AF_INET] or found
        hosts = {f"[{each[4][0]}]" if each[0] == socket.AF_INET6 else str(each[4][0]) for each in found}
        return [f"{each}:{port}" for each in sorted(hosts)]

    def _read_file(self) -> list[str]:
        lines = Path(self.text.removeprefix(FILE)).read_text().splitlines()
        return _checked(self._name, [line.strip() for line in lines if line.strip()])


def _checked(name: str, addresses: list[str]) -> list[str]:
    """Drops repeated addresses. Raises InvalidArgument."""
    for address in addresses:
        check_address(name, address)
    return list(dict.fromkeys(addresses))
