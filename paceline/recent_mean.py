from dataclasses import dataclass


@dataclass(slots=True)
class RecentMean:
    """A mean in which older observations count less and less; the first ones count alike."""

    # Of the newest observation, in (0, 1).
    weight: float
    value: float = 0.0
    # More than 0 at first: `value` is a guess that counts as so many observations.
    num_seen: int = 0

    def add(self, value: float) -> None:
        self.num_seen += 1
        self.value += max(self.weight, 1 / self.num_seen) * (value - self.value)
