"""Trials: whether generations that share forwards are faster with a model's drafts, measured both ways.

What drafts cost a batch can't be added up from rounds: who waits for drafts misses the forward of those who do not, and
the batch falls apart into two. So beside others a model's drafts are made only while that was faster.
"""

# Rounds of generations that make a measurement, and the weight of older ones for each new one.
ENOUGH = 32
MEMORY = 0.97
# The way that lost is tried again after so many rounds: a percent of the time.
RETRY = 100 * ENOUGH
# Drafts must be faster by this factor: a little is chance.
MARGIN = 1.02


class Speed:
    """Tokens a second of a generation, from recent rounds."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self._tokens = self._seconds = 0.0

    @property
    def tokens_per_s(self) -> float:
        return self._tokens / self._seconds if self._seconds > 0 else 0.0

    def learn(self, num_tokens: int, seconds: float) -> None:
        self.num_rounds += 1
        self._tokens = MEMORY * self._tokens + num_tokens
        self._seconds = MEMORY * self._seconds + seconds


class Trial:
    """At one number of active generations."""

    def __init__(self) -> None:
        self._with, self._without = Speed(), Speed()
        self._num_since = 0

    @property
    def allows(self) -> bool:
        """Whether a model may draft in the next round."""
        if self._with.num_rounds < ENOUGH:
            return True
        if self._without.num_rounds < ENOUGH:
            return False
        return self._with.tokens_per_s > MARGIN * self._without.tokens_per_s

    def learn(self, was_allowed: bool, num_tokens: int, seconds: float) -> None:
        """Learns from a round."""
        (self._with if was_allowed else self._without).learn(num_tokens, seconds)
        self._num_since += 1
        if self._num_since >= RETRY:
            self._num_since = 0
            if self.allows:
                self._without = Speed()
            else:
                self._with = Speed()
