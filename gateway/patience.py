"""How long a request goes on asking for coordinators that went away."""

import time

from paceline.errors import Unavailable


class Patience:
    """One request's. It counts from a failure on, and anew once the answer came further."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._failing_since_s: float | None = None
        self.failure = Unavailable("no coordinator was asked")

    def note_failure(self, error: Unavailable) -> None:
        self.failure = error
        if self._failing_since_s is None:
            self._failing_since_s = time.monotonic()

    def note_progress(self) -> None:
        self._failing_since_s = None

    @property
    def is_over(self) -> bool:
        return self._failing_since_s is not None and time.monotonic() - self._failing_since_s >= self._patience_s
