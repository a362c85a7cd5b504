"""A budget of tokens and time."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """The work ends when the tokens or the seconds are used. The time of interrupted runs counts."""

    tokens: float = math.inf
    seconds: float = math.inf

    def share(self, tokens: int, seconds: float) -> float:
        """The used part of the budget, in [0, 1]."""
        return min(1.0, max(tokens / self.tokens, seconds / self.seconds))
