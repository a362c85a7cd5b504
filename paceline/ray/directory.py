"""Addresses of running processes by role. No round or stream passes through the directory, so it may be away for any time."""

import asyncio
import secrets
import time
from typing import NamedTuple

from paceline.ray.scaling import Demand

# A process whose supervisor was killed leaves with its lease.
LEASE_S, RENEWAL_S = 15.0, 5.0
# After a restart, until every supervisor has renewed.
SETTLING_S = 2 * RENEWAL_S
# How long a question waits for a change.
POLL_S = 10.0

Lists = dict[str, list[str]]


class Version(NamedTuple):
    """The changes that a directory has counted. Counts of two directories have nothing to do with each other."""

    directory: str
    num_changes: int


# Of a caller that knows nothing yet.
NOTHING_SEEN = Version("", 0)


class Lease(NamedTuple):
    address: str
    end_s: float
    demand: Demand


class Directory:
    """Holds leases of addresses. It stores nothing: after a restart, renewals fill it again."""

    def __init__(self) -> None:
        # By role and instance.
        self._leases: dict[tuple[str, str], Lease] = {}
        self._started_s = time.monotonic()
        # Drawn at each start, which may be on another machine.
        self._version = Version(secrets.token_hex(8), 0)
        self._changed = asyncio.Event()

    async def renew(self, role: str, instance: str, address: str, demand: Demand) -> None:
        """Adds a process, or keeps it. `demand`: what it asks of the targets."""
        is_new = (role, instance) not in self._leases
        self._leases[role, instance] = Lease(address, time.monotonic() + LEASE_S, demand)
        if is_new:
            self._change()

    async def leave(self, instance: str) -> None:
        self._drop([key for key in self._leases if key[1] == instance])

    async def demand(self) -> Demand:
        """Returns what all processes ask of the targets."""
        demands = [lease.demand for lease in self._leases.values()]
        return Demand(sum(each.reserved_tokens for each in demands), sum(each.num_waiting for each in demands))

    async def lists(self, seen: Version) -> tuple[Version, Lists]:
        """Returns a version and the addresses by role, as soon as the version is another than `seen`.

        A caller of an earlier directory would take those that have not renewed yet for gone: it waits until they have.
        """
        if seen != NOTHING_SEEN and seen.directory != self._version.directory:
            await asyncio.sleep(self._started_s + SETTLING_S - time.monotonic())
        if seen == self._version:
            try:
                await asyncio.wait_for(self._changed.wait(), POLL_S)
            except TimeoutError:
                self._expire()
        found: Lists = {}
        for (role, _), lease in sorted(self._leases.items()):
            found.setdefault(role, []).append(lease.address)
        return self._version, found

    def _expire(self) -> None:
        now_s = time.monotonic()
        self._drop([key for key, lease in self._leases.items() if lease.end_s < now_s])

    def _drop(self, keys: list[tuple[str, str]]) -> None:
        for key in keys:
            del self._leases[key]
        if keys:
            self._change()

    def _change(self) -> None:
        self._version = self._version._replace(num_changes=self._version.num_changes + 1)
        self._changed.set()
        self._changed = asyncio.Event()
