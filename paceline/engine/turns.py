"""Turns at computing, between model servers that share one set of cores.

Two OpenMP teams at work on the same cores are not twice as slow but ten times: each team's
threads spin for one another while the other's hold the cores. So a server takes a turn for each
forward, by an advisory lock on a file that the neighbours agree on. Turns are a courtesy: nothing
but speed depends on them, the lock of a process that dies is free, and a neighbour that holds it
for too long (stopped, or swapped out) is not waited for.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator

from paceline.errors import ConfigError

# Longest wait for a turn: about a full batch's forward.
PATIENCE_S = 0.5
# Between two looks at a taken lock.
POLL_S = 50e-6


class Turns:
    """One server's access to the turns."""

    def __init__(self, path: str | None) -> None:
        """Creates the file if it is not there; with None every turn is free. Raises ConfigError if it can't."""
        try:
            self._file = None if path is None else os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
        except OSError as error:
            raise ConfigError(f"turns_file {path} can't be opened: {error.strerror}") from error
        # After a wait in vain: look once, do not wait, until the neighbour has let go.
        self._patience_s = PATIENCE_S

    @contextlib.contextmanager
    def take(self) -> Iterator[None]:
        """Compute in here: waits for the neighbour's turn to end first, within reason."""
        if self._file is None:
            yield
            return
        held = self._acquire(self._file)
        try:
            yield
        finally:
            if held:
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _acquire(self, file: int) -> bool:
        deadline_s = time.perf_counter() + self._patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.perf_counter() >= deadline_s:
                    self._patience_s = 0.0
                    return False
                time.sleep(POLL_S)
            else:
                self._patience_s = PATIENCE_S
                return True
