"""Values that are made from files, and made again when the files change."""

import logging
import os
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from paceline.errors import ConfigError

log = logging.getLogger(__name__)
T = TypeVar("T")
# Minimum interval between checks of the files.
LOOK_INTERVAL_S = 1.0
# What changes when a file is written or replaced.
Signature = tuple[int, int, int]


def signature_of(found: os.stat_result) -> Signature:
    return found.st_mtime_ns, found.st_size, found.st_ino


class Reloaded(Generic[T]):
    """A value made from files, and made again when they change and are valid."""

    def __init__(self, sign: Callable[[], object], make: Callable[[], T], contents: str) -> None:
        """Raises ConfigError if `sign` or `make` does.

        sign: returns the files' signatures.
        contents: what they hold, for the log.
        """
        self._sign, self._make, self._contents = sign, make, contents
        self._looked_s = time.monotonic()
        # Taken before the files are read, so that a change in between is seen at the next check.
        self._seen = sign()
        self._trouble: tuple[object, ...] = ()
        self.value = make()

    def newer(self) -> T | None:
        """Returns the value if it has changed since the last call. Bad files are logged once and change nothing."""
        now_s = time.monotonic()
        if now_s - self._looked_s < LOOK_INTERVAL_S:
            return None
        self._looked_s = now_s
        try:
            seen = self._sign()
            if seen == self._seen and not self._trouble:
                return None
            self.value = self._make()
        except ConfigError as error:
            if error.args != self._trouble:
                log.warning("%s; keeping the previous %s", error, self._contents)
            self._trouble = error.args
            return None
        self._seen, self._trouble = seen, ()
        log.info("%s reloaded", self._contents)
        return self.value
