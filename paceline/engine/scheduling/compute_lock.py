"""A lock between model servers that share one set of cores: one of them computes at a time.

Two OpenMP teams at work on the same cores are not twice as slow but ten times: the threads of each team spin while
they wait for one another, and hold the cores that the other team needs. So a server computes only while it holds a
lease: an advisory lock on a file that the servers agree on. A server that waits holds a second lock, the place of
whoever is next, so that the server that just computed can't be first again.

A lease is for one forward, or for several that together take no longer than the peer's last lease. Otherwise a chunk
of a long prompt would come between any two of the peer's small steps.

Only speed depends on this lock. The lock of a process that dies is free, and a peer that keeps it for too long
(stopped, or swapped out) is not waited for.
"""

import contextlib
import fcntl
import os
import secrets
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.errors import ConfigError

# Longest wait for a lease: longer than a full batch's forward should take.
PATIENCE_S = 5.0
# Between two looks at a taken lock.
POLL_S = 50e-6
# What the file holds of the last lease: whose it was, when it began and ended (time.perf_counter, one clock for all
# processes of a machine), and how many sequences have their next job with the peer. The holder is a random number:
# in two containers both servers may have the same process id.
LAST_LEASE = struct.Struct("=Qddq")


@dataclass(frozen=True, slots=True)
class PastLease:
    """A lease of the peer's that is over."""

    started_s: float
    ended_s: float
    num_handed_over: int


@dataclass(slots=True)
class Lease:
    """The right to compute until `ends_s`, of time.perf_counter."""

    ends_s: float
    # The lease just before, if it was the peer's.
    before: PastLease | None
    # Sequences answered under this lease that the peer may expect.
    num_handed_over: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it is time to let the peer compute."""
        return time.perf_counter() >= self.ends_s


class ComputeLock:
    """One server's access to the lock."""

    def __init__(self, path: str | None) -> None:
        """Creates `path` and `path`.next if they are not there; with None every lease is free.

        Raises ConfigError if it can't create or open them.
        """
        try:
            self._file = None if path is None else _open(path)
            self._next = None if path is None else _open(f"{path}.next")
        except OSError as error:
            raise ConfigError(f"compute_lock_file {path} can't be opened: {error.strerror}") from error
        self._holder = secrets.randbits(64)
        # After a wait in vain: look once and do not wait, until the peer has let go.
        self._patience_s = PATIENCE_S

    @contextlib.contextmanager
    def lease(self) -> Iterator[Lease]:
        """Compute in here, at least once: waits for the peer's lease to end first, within reason."""
        held = self._acquire()
        started_s = time.perf_counter()
        before = self._before() if held else None
        lease = Lease(started_s + (before.ended_s - before.started_s if before is not None else 0.0), before)
        try:
            yield lease
        finally:
            if held and self._file is not None:
                last = LAST_LEASE.pack(self._holder, started_s, time.perf_counter(), lease.num_handed_over)
                os.pwrite(self._file, last, 0)
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _before(self) -> PastLease | None:
        """The lease before this one, if it was the peer's."""
        assert self._file is not None
        found = os.pread(self._file, LAST_LEASE.size, 0)
        if len(found) < LAST_LEASE.size:
            return None
        holder, started_s, ended_s, num_handed_over = LAST_LEASE.unpack(found)
        return PastLease(started_s, ended_s, num_handed_over) if holder != self._holder else None

    def _acquire(self) -> bool:
        """Whether the lock is ours; False where there is none, or after a wait in vain."""
        if self._file is None or self._next is None:
            return False
        deadline_s = time.perf_counter() + self._patience_s
        held = False
        if _poll_lock(self._next, deadline_s):
            held = _poll_lock(self._file, deadline_s)
            fcntl.flock(self._next, fcntl.LOCK_UN)
        self._patience_s = PATIENCE_S if held else 0.0
        return held


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)


def _poll_lock(file: int, deadline_s: float) -> bool:
    """Whether the lock was had in time. Polled, since a lock that is waited for knows no deadline."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.perf_counter() >= deadline_s:
                return False
            time.sleep(POLL_S)
        else:
            return True
