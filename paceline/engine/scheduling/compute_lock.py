"""Turns at computing, between model servers that share one set of cores.

Two OpenMP teams at work on the same cores are not twice as slow but ten times: each team's
threads spin for one another while the other's hold the cores. So a server takes turns, by an
advisory lock on a file that the neighbours agree on. Who waits holds a second lock, the place of
whoever is next, so that the one who just computed can't be first again.

A turn is a forward, or several, as long as they take no longer together than the neighbour's last
turn did: else a chunk of a long prompt would come between any two of the neighbour's small steps.

Turns are a courtesy: nothing but speed depends on them, the lock of a process that dies is free,
and a neighbour that holds it for too long (stopped, or swapped out) is not waited for.
"""

import contextlib
import fcntl
import os
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass

from paceline.errors import ConfigError

# Longest wait for a turn: longer than a full batch's forward should take.
PATIENCE_S = 5.0
# Between two looks at a taken lock.
POLL_S = 50e-6
# What the file holds of the last turn: whose process it was, when it began and ended (time.perf_counter, which is one
# clock for all processes), and how many sequences have their next job with the neighbour.
LAST_TURN = struct.Struct("=qddq")


@dataclass(frozen=True, slots=True)
class PastTurn:
    """A turn of the neighbour's."""

    started_s: float
    ended_s: float
    num_handed_over: int


@dataclass(slots=True)
class Turn:
    """Ours by right until `ends_s`, of time.perf_counter."""

    ends_s: float
    # The turn just before, if it was the neighbour's.
    before: PastTurn | None
    # Sequences answered in this one that the neighbour may expect.
    num_handed_over: int = 0

    @property
    def is_over(self) -> bool:
        """Whether it is time to let the neighbour compute."""
        return time.perf_counter() >= self.ends_s


class Turns:
    """One server's access to the turns."""

    def __init__(self, path: str | None) -> None:
        """Creates `path` and `path`.next if they are not there; with None every turn is free.

        Raises ConfigError if it can't.
        """
        try:
            self._file = None if path is None else _open(path)
            self._next = None if path is None else _open(f"{path}.next")
        except OSError as error:
            raise ConfigError(f"turns_file {path} can't be opened: {error.strerror}") from error
        # After a wait in vain: look once, do not wait, until the neighbour has let go.
        self._patience_s = PATIENCE_S

    @contextlib.contextmanager
    def take(self) -> Iterator[Turn]:
        """Compute in here, at least once: waits for the neighbour's turn to end first, within reason."""
        held = self._acquire()
        started_s = time.perf_counter()
        try:
            before = self._before() if held else None
            turn = Turn(started_s + (before.ended_s - before.started_s if before is not None else 0.0), before)
            yield turn
        finally:
            if held and self._file is not None:
                last = LAST_TURN.pack(os.getpid(), started_s, time.perf_counter(), turn.num_handed_over)
                os.pwrite(self._file, last, 0)
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _before(self) -> PastTurn | None:
        """The turn before this one, if it was the neighbour's."""
        assert self._file is not None
        found = os.pread(self._file, LAST_TURN.size, 0)
        if len(found) < LAST_TURN.size:
            return None
        pid, started_s, ended_s, num_handed_over = LAST_TURN.unpack(found)
        return PastTurn(started_s, ended_s, num_handed_over) if pid != os.getpid() else None

    def _acquire(self) -> bool:
        """Whether the turn is ours; False where there are no turns, or after a wait in vain."""
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
