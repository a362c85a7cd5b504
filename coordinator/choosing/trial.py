"""Trials: how generations that share forwards are fastest, measured in each way.

What drafts cost a batch can't be added up from rounds. Who waits for a draft model misses the forward of those who do not,
and the batch falls apart into two. Looking up takes the coordinator's time, and all others of the batch wait for it. So
beside others each way is measured, and the fastest one stays.
"""

import enum

# Rounds of generations that make a measurement, and the weight of older ones for each new one.
ENOUGH = 64
MEMORY = 0.995
# A way that lost is tried again after so many rounds, and not before what its last trial lost is this fraction of the time.
RETRY = 50 * ENOUGH
SHARE = 0.01
# A way that drafts more must be faster by this factor: a little is chance.
MARGIN = 1.02


class Way(enum.IntEnum):
    """Who may draft. In the order in which they are tried."""

    LOOK_UPS = 0
    NOBODY = 1
    ALL = 2


# From the one that drafts least.
BY_DRAFTS = (Way.NOBODY, Way.LOOK_UPS, Way.ALL)


class Speed:
    """What one way brought in recent rounds, and for how long it was not taken."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self._tokens = self._seconds = self._once_s = 0.0
        # Rounds and seconds in other ways since its own last one.
        self._rounds_since, self._seconds_since = 0, 0.0

    @property
    def tokens_per_s(self) -> float:
        """Of one generation."""
        return self._tokens / self._seconds if self._seconds > 0 else 0.0

    def learn(self, num_tokens: int, seconds: float, once_s: float) -> None:
        self.num_rounds += 1
        self._tokens = MEMORY * self._tokens + num_tokens
        self._seconds = MEMORY * self._seconds + seconds - once_s
        self._once_s = MEMORY * self._once_s + once_s
        self._rounds_since, self._seconds_since = 0, 0.0

    def wait(self, seconds: float) -> None:
        """Another way took a round of so many seconds."""
        self._rounds_since += 1
        self._seconds_since += seconds

    def is_due(self, fastest: "Speed") -> bool:
        """Whether it is time to try this way again."""
        loss_s = self._seconds + self._once_s - self._tokens / fastest.tokens_per_s
        return self._rounds_since >= RETRY and SHARE * self._seconds_since >= loss_s


class Trial:
    """At one number of active generations."""

    def __init__(self) -> None:
        self._speeds = {way: Speed() for way in Way}

    @property
    def way(self) -> Way:
        """Who may draft in the next round."""
        for way in Way:
            if self._speeds[way].num_rounds < ENOUGH:
                return way
        return self._fastest()

    def learn(self, way: Way, num_tokens: int, seconds: float, once_s: float = 0.0) -> None:
        """Learns from a round; of its seconds `once_s` went into what all later rounds of the generation share.

        They do not make the way slower, but are a part of what a trial of it costs.
        """
        self._speeds[way].learn(num_tokens, seconds, once_s)
        for each in Way:
            if each is not way:
                self._speeds[each].wait(seconds)
        fastest = self._fastest()
        if self.way is fastest:
            due = [each for each in Way if each is not fastest and self._speeds[each].is_due(self._speeds[fastest])]
            if due:
                self._speeds[due[0]] = Speed()

    def _fastest(self) -> Way:
        best = BY_DRAFTS[0]
        for way in BY_DRAFTS[1:]:
            if self._speeds[way].tokens_per_s > MARGIN * self._speeds[best].tokens_per_s:
                best = way
        return best
