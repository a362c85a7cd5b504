class Backoff:
    """Pauses between attempts, each twice as long as the one before."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s, self._most_s = first_s, most_s
        # The next pause.
        self.pause_s = first_s

    @property
    def is_first(self) -> bool:
        """Whether no attempt has failed since the last `reset`."""
        return self.pause_s == self._first_s

    def take(self) -> float:
        """Returns the next pause, and doubles the one after it."""
        pause_s, self.pause_s = self.pause_s, min(self._most_s, self.pause_s * 2)
        return pause_s

    def reset(self) -> None:
        self.pause_s = self._first_s
