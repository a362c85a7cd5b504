"""How much is to be done, by tokens or by the clock."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Budget:
    """What ends first ends the work; time that a broken off run took counts."""

    tokens: float = math.inf
    seconds: float = math.inf

    def share(self, tokens: int, seconds: float) -> float:
        """What of it is used, in [0, 1]."""
        return min(1.0, max(tokens / self.tokens, seconds / self.seconds))
