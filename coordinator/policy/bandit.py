"""A bandit over which drafters may propose, while generations share forwards.

What drafts cost a batch can't be added up from rounds. A request that waits for the draft model misses the next target
forward, so the batch splits in two; a lookup takes the coordinator's time, for which the whole batch waits. So each arm is
measured, and the fastest one stays.

Arms are measured one after the other while generations come and go. So a round's time is counted in rounds without drafts
among as many generations. After a change of arms, forwards mix rows of both and are not counted.
"""

import enum
import math
from dataclasses import dataclass

from coordinator.policy.measurements import Line

# Rounds that measure an arm, and factor on the weight of older ones for each new one.
ENOUGH = 64
MEMORY = 0.995
# An arm that lost is tried again after this many rounds, once what its last trial lost is this fraction of the time.
RETRY = 50 * ENOUGH
SHARE = 0.01
# An arm with more drafts must be faster by this factor: each arm is measured on other texts.
MARGIN = 1.05
# Limit of a round's time in plain rounds, without what later rounds share: an absent target says nothing of arms.
LONGEST = 8.0
# After this many rounds of a generation in a row during which a prompt was read, such rounds count too.
MAX_SKIPPED = 64
# After a change of arms, rounds count that began this many times their own length later.
SETTLING = 0.9
# First guess of what one more generation adds to a round, as a fraction of the round's time over their number.
GUESSED_SHARE = 0.7
# Fraction of the time that probes may take.
PROBE_SHARE = 0.01
# A probe is two rounds with one draft: in the first the model reads the context it has missed.
PROBE_ROUNDS = 2


class Arm(enum.IntEnum):
    """Which drafters may propose, in the order in which arms are tried."""

    NONE = 0
    LOOKUPS = 1
    ALL = 2


class ArmStats:
    """Tokens and time of an arm's recent rounds, and how long it has not been chosen."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self._tokens = self._time = self._once = 0.0
        # Rounds of other arms since its own last one, and their time.
        self._rounds_since, self._time_since = 0, 0.0

    @property
    def tokens(self) -> float:
        """Returns the tokens of one generation in the time of a plain round."""
        return self._tokens / self._time if self._time > 0 else 0.0

    def learn(self, num_tokens: int, time: float, once: float) -> None:
        """`time`: the round's, in plain rounds; `once`: the part that later rounds of the generation share."""
        self.num_rounds += 1
        self._tokens = MEMORY * self._tokens + num_tokens
        self._time = MEMORY * self._time + time - once
        self._once = MEMORY * self._once + once
        self._rounds_since, self._time_since = 0, 0.0

    def wait(self, time: float) -> None:
        self._rounds_since += 1
        self._time_since += time

    def is_due(self, fastest: "ArmStats") -> bool:
        loss = self._time + self._once - self._tokens / fastest.tokens
        return self._rounds_since >= RETRY and SHARE * self._time_since >= loss


class Bandit:
    """Chooses an arm at one level of concurrency."""

    def __init__(self) -> None:
        self._stats = {arm: ArmStats() for arm in Arm}
        # Seconds of a round without drafts, by the number of active generations.
        self._plain_s = Line(GUESSED_SHARE)
        # The current arm, and since when.
        self._current, self._current_since_s = Arm.NONE, -math.inf
        # Rounds in a row that overlapped with the reading of a prompt.
        self._num_skipped = 0

    @property
    def arm(self) -> Arm:
        for arm in Arm:
            if self._stats[arm].num_rounds < ENOUGH:
                return arm
        return self._fastest()

    def counts(self, num_active: int, overlaps_a_prompt: bool) -> bool:
        """Returns whether to learn from a round: a forward that reads a prompt is full, whatever is drafted."""
        self._num_skipped = self._num_skipped + 1 if overlaps_a_prompt else 0
        return not overlaps_a_prompt or self._num_skipped > MAX_SKIPPED * num_active

    def learn(
        self, arm: Arm, num_active: int, num_tokens: int, started_s: float, ended_s: float, once_s: float = 0.0
    ) -> None:
        """Learns from a round.

        `once_s`: the seconds from which all later rounds of the generation gain too. They do not slow the arm down, but
        count as costs of trying it.
        """
        seconds = ended_s - started_s
        if arm is not self._current or started_s - self._current_since_s < SETTLING * seconds:
            return
        if arm is Arm.NONE:
            self._plain_s.learn(num_active, seconds)
        plain_s = self._plain_s(num_active)
        once = once_s / plain_s
        rounds = once + min(seconds / plain_s - once, LONGEST)
        self._stats[arm].learn(num_tokens, rounds, once)
        for each in Arm:
            if each is not arm:
                self._stats[each].wait(rounds)
        fastest = self._fastest()
        if self.arm is fastest:
            due = [each for each in Arm if each is not fastest and self._stats[each].is_due(self._stats[fastest])]
            if due:
                self._stats[due[0]] = ArmStats()
        if self.arm is not self._current:
            self._current, self._current_since_s = self.arm, ended_s

    def _fastest(self) -> Arm:
        best = Arm.NONE
        for arm in (Arm.LOOKUPS, Arm.ALL):
            if self._stats[arm].tokens > MARGIN * self._stats[best].tokens:
                best = arm
        return best


@dataclass(frozen=True, slots=True)
class Probe:
    """Tries a model's drafts again that seemed not to pay, as loads and texts change.

    All generations that share forwards probe together: one alone would cost the others as much time, and would not show
    the cost when all draft.
    """

    began_s: float
    # Time that its first generation needs to read missed context. Generations that need more do not take part.
    reading_s: float

    def is_over(self, now_s: float, drafted_s: float, cost_s: float) -> bool:
        """Returns whether the next probe is due. It takes `cost_s`; drafts were last made at `drafted_s`."""
        return now_s - max(drafted_s, self.began_s) > cost_s / PROBE_SHARE
