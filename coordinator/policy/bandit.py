"""Trials: how generations that share forwards are fastest, measured in each way.

What drafts cost a batch can't be added up from rounds. Who waits for a draft model misses the forward of those who do not,
and the batch falls apart into two. Looking up takes the coordinator's time, and all others of the batch wait for it. So
beside others each way is measured, and the fastest one stays.

Ways are measured one after the other, and meanwhile generations come and go. So a round's time is counted in rounds in which
nobody drafts, beside as many others. Where one way ends and the next begins, forwards hold rows of both, and say nothing.
"""

import enum
import math
from dataclasses import dataclass

from coordinator.policy.measurements import Line

# Rounds of generations that make a measurement, and the weight of older ones for each new one.
ENOUGH = 64
MEMORY = 0.995
# A way that lost is tried again after so many rounds, and not before what its last trial lost is this fraction of the time.
RETRY = 50 * ENOUGH
SHARE = 0.01
# A way that drafts more must be faster by this factor: less is chance, for each way has its own texts.
MARGIN = 1.05
# A round counts as at most so many plain rounds, besides what later ones share: a target that was away for a minute says
# nothing of who drafted.
LONGEST = 8.0
# After so many rounds of a generation beside a prompt, all in a row, such rounds count too: there may be no others.
MOST_SKIPPED = 64
# After a change of the way, rounds count that began so many times their own length later.
SETTLING = 0.9
# The first guess of what one generation more adds to a round, as a fraction of the round's time over their number.
GUESSED_SHARE = 0.7


class Way(enum.IntEnum):
    """Who may draft, from the fewest drafts to the most: so they are tried."""

    NOBODY = 0
    LOOK_UPS = 1
    ALL = 2


class Speed:
    """What one way brought in recent rounds, and for how long it was not taken."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self._tokens = self._time = self._once = 0.0
        # Rounds in other ways since its own last one, and their time.
        self._rounds_since, self._time_since = 0, 0.0

    @property
    def tokens(self) -> float:
        """Tokens of one generation in the time of a plain round."""
        return self._tokens / self._time if self._time > 0 else 0.0

    def learn(self, num_tokens: int, time: float, once: float) -> None:
        """`time`: the round's, in plain rounds; `once`: the part of it that later rounds of the generation share."""
        self.num_rounds += 1
        self._tokens = MEMORY * self._tokens + num_tokens
        self._time = MEMORY * self._time + time - once
        self._once = MEMORY * self._once + once
        self._rounds_since, self._time_since = 0, 0.0

    def wait(self, time: float) -> None:
        """A round went another way, for so many plain rounds."""
        self._rounds_since += 1
        self._time_since += time

    def is_due(self, fastest: "Speed") -> bool:
        """Whether it is time to try this way again."""
        loss = self._time + self._once - self._tokens / fastest.tokens
        return self._rounds_since >= RETRY and SHARE * self._time_since >= loss


class Trial:
    """At one level of active generations."""

    def __init__(self) -> None:
        self._speeds = {way: Speed() for way in Way}
        # Seconds of a round without drafts, by the number of active generations.
        self._plain_s = Line(GUESSED_SHARE)
        # The way that is being taken, and since when.
        self._taken, self._taken_since_s = Way.NOBODY, -math.inf
        # Rounds in a row that ran beside a prompt.
        self._num_skipped = 0

    @property
    def way(self) -> Way:
        """Who may draft in the next round."""
        for way in Way:
            if self._speeds[way].num_rounds < ENOUGH:
                return way
        return self._fastest()

    def counts(self, num_active: int, is_beside_a_prompt: bool) -> bool:
        """Whether to learn from a round: not from one beside a prompt, where a forward has as many rows as it may have."""
        self._num_skipped = self._num_skipped + 1 if is_beside_a_prompt else 0
        return not is_beside_a_prompt or self._num_skipped > MOST_SKIPPED * num_active

    def learn(
        self, way: Way, num_active: int, num_tokens: int, started_s: float, ended_s: float, once_s: float = 0.0
    ) -> None:
        """Learns from a round; of its seconds `once_s` went into what all later rounds of the generation share.

        They do not make the way slower, but are a part of what a trial of it costs.
        """
        seconds = ended_s - started_s
        if way is not self._taken or started_s - self._taken_since_s < SETTLING * seconds:
            return
        if way is Way.NOBODY:
            self._plain_s.learn(num_active, seconds)
        plain_s = self._plain_s(num_active)
        once = once_s / plain_s
        rounds = once + min(seconds / plain_s - once, LONGEST)
        self._speeds[way].learn(num_tokens, rounds, once)
        for each in Way:
            if each is not way:
                self._speeds[each].wait(rounds)
        fastest = self._fastest()
        if self.way is fastest:
            due = [each for each in Way if each is not fastest and self._speeds[each].is_due(self._speeds[fastest])]
            if due:
                self._speeds[due[0]] = Speed()
        if self.way is not self._taken:
            self._taken, self._taken_since_s = self.way, ended_s

    def _fastest(self) -> Way:
        best = Way.NOBODY
        for way in (Way.LOOK_UPS, Way.ALL):
            if self._speeds[way].tokens > MARGIN * self._speeds[best].tokens:
                best = way
        return best


# Probes may take this fraction of the time.
PROBE_SHARE = 0.01
# A probe is two rounds with one draft: in the first the model reads context that it missed, so only the second shows the
# cost of a draft.
PROBE_ROUNDS = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """A test whether drafts pay. All generations that share forwards make it together: a test of one would cost the
    others as much time, and would not show the cost when all draft."""

    began_s: float
    # The time its first generation needs to read missed context: who needs more does not take part.
    reading_s: float

    def is_over(self, now_s: float, drafted_s: float, price_s: float) -> bool:
        """Whether it is time for the next probe, which takes `price_s`, when drafts were last made at `drafted_s`."""
        return now_s - max(drafted_s, self.began_s) > price_s / PROBE_SHARE
