"""The compute lock: model servers on the same cores compute one at a time.

Two OpenMP teams on the same cores spin while they wait and are far slower than one after the other. So a server
computes only while it holds a lease, an advisory lock on a shared file. A second lock means "I am next", so that the
server that has just computed can't take the next lease first.

A lease lasts for one forward pass, or for several that take no longer than the peer's last lease. Otherwise a prompt's chunk
would run between any two of the peer's small steps.

Only speed depends on the lock. The system releases a dead process's lock, and a server computes without it if the peer
holds it for too long (stopped or swapped out).
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

# Longest wait for a lease; a full batch's forward should be shorter.
TIMEOUT_S = 5.0
# Time between two attempts to take the lock.
POLL_S = 50e-6
# The file's record of the last lease: its holder, its start and end (time.perf_counter, which is one clock for all
# processes of a machine), and how many sequences will have their next job with the peer. The holder is a random
# number, because servers in two containers may have the same process id.
LAST_LEASE = struct.Struct("=Qddq")


@dataclass(frozen=True, slots=True)
class PastLease:
    started_s: float
    ended_s: float
    num_handed_over: int


@dataclass(slots=True)
class Lease:
    """The right to compute until `ends_s` (time.perf_counter)."""

    ends_s: float
    # The lease before this one, if the peer held it.
    before: PastLease | None
    # Sequences that were answered under this lease and will have their next job with the peer.
    num_handed_over: int = 0

    @property
    def is_over(self) -> bool:
        return time.perf_counter() >= self.ends_s


class ComputeLock:
    def __init__(self, path: str | None) -> None:
        """Opens or creates `path` and `path`.next. Does nothing without a path.

        Raises ConfigError if the files can't be opened.
        """
        try:
            self._file = None if path is None else _open(path)
            self._next = None if path is None else _open(f"{path}.next")
        except OSError as error:
            raise ConfigError(f"compute_lock_file {path} can't be opened: {error.strerror}") from error
        self._path = path
        self._holder = secrets.randbits(64)
        # 0 after a timeout: don't wait again until the peer has released the lock.
        self._timeout_s = TIMEOUT_S
        self._lease: Lease | None = None

    def share_files(self, other: "ComputeLock") -> None:
        """Makes this lock one with another of the same path, for the same thread, which would else wait for itself."""
        if self._path == other._path:
            self._file, self._next = other._file, other._next

    @contextlib.contextmanager
    def lease(self) -> Iterator[Lease]:
        """Holds a lease; the caller computes at least once. Waits at most TIMEOUT_S for the peer.

        Within a lease it returns the same one, which ends with the outer block. For one thread.
        """
        if self._lease is not None:
            yield self._lease
            return
        held = self._acquire()
        started_s = time.perf_counter()
        before = self._before() if held else None
        lease = self._lease = Lease(
            started_s + (before.ended_s - before.started_s if before is not None else 0.0), before
        )
        try:
            yield lease
        finally:
            self._lease = None
            if held and self._file is not None:
                last = LAST_LEASE.pack(self._holder, started_s, time.perf_counter(), lease.num_handed_over)
                # On a full disk the peer just misses this lease's record.
                with contextlib.suppress(OSError):
                    os.pwrite(self._file, last, 0)
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _before(self) -> PastLease | None:
        assert self._file is not None
        found = os.pread(self._file, LAST_LEASE.size, 0)
        if len(found) < LAST_LEASE.size:
            return None
        holder, started_s, ended_s, num_handed_over = LAST_LEASE.unpack(found)
        return PastLease(started_s, ended_s, num_handed_over) if holder != self._holder else None

    def _acquire(self) -> bool:
        if self._file is None or self._next is None:
            return False
        deadline_s = time.perf_counter() + self._timeout_s
        held = False
        if _poll_lock(self._next, deadline_s):
            held = _poll_lock(self._file, deadline_s)
            fcntl.flock(self._next, fcntl.LOCK_UN)
        self._timeout_s = TIMEOUT_S if held else 0.0
        return held


def _open(path: str) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)


def _poll_lock(file: int, deadline_s: float) -> bool:
    """Polls, because a blocking flock has no deadline."""
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.perf_counter() >= deadline_s:
                return False
            time.sleep(POLL_S)
        else:
            return True
