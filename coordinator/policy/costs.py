"""What a round costs: the servers' own forward times, corrected by the rounds that ran.

A model card tells the seconds of a forward by its number of tokens. A round takes longer than its forwards: messages, a
longer context, waits for other generations. Factors correct for that: the mean of observed over predicted seconds, at
each level of concurrency, of rounds with drafts and of those without.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from coordinator.admission import ActiveGenerations
from coordinator.remote.link import ForwardTimes
from coordinator.stats import Round

# Weight of the newest observation in a factor; the first ones count alike.
RECENT = 0.05
# An observation is limited to this multiple of the factor: a pause says nothing of the next round.
MAX_SURPRISE = 2.0
# A draft that reads a longer tail is predicted, but not learned from: only shorter forwards were measured.
MAX_TAIL = 64


class Factor:
    """Mean of observed over predicted seconds."""

    def __init__(self) -> None:
        self.value, self._num = 1.0, 0

    def learn(self, ratio: float) -> None:
        self._num += 1
        if self._num * RECENT > 0.25:
            ratio = min(ratio, MAX_SURPRISE * self.value)
        ratio = max(ratio, 1e-3)
        self.value += max(RECENT, 1 / self._num) * (ratio - self.value)


@dataclass(slots=True)
class Level:
    """Factors at one level of concurrency: of the target's forward, without and with drafts, and of the drafting."""

    plain: Factor = field(default_factory=Factor)
    verifying: Factor = field(default_factory=Factor)
    drafting: Factor = field(default_factory=Factor)


class CostModel:
    """Predicts seconds as if all active generations did the same, for they decide alike and share the forwards."""

    def __init__(self, active: ActiveGenerations, target_times: Callable[[], ForwardTimes]) -> None:
        self.active = active
        self._target_times = target_times
        # By the bit length of the number of active generations.
        self._levels: dict[int, Level] = {}
        # Recent mean of drafts in a round.
        self._num_drafts = 0.0

    @property
    def level(self) -> Level:
        number = self.active.size.bit_length()
        level = self._levels.get(number)
        if level is None:
            level = self._levels[number] = Level()
        return level

    def verify_s(self, num_drafts: float) -> float:
        """Predicts the target's part of a round."""
        factor = self.level.verifying if num_drafts else self.level.plain
        return factor.value * self._target_times()(self.active.size * (1 + num_drafts))

    def draft_s(self, times: ForwardTimes, num_fed: float, num_drafts: float, in_parallel: bool) -> float:
        """Predicts the drafting of `num_drafts` tokens after feeding `num_fed`, one forward for each or one for all."""
        num_active = self.active.size
        if in_parallel:
            forwards_s = times(num_active * (num_fed + num_drafts - 1))
        else:
            forwards_s = times(num_active * num_fed) + (num_drafts - 1) * times(num_active)
        return self.level.drafting.value * forwards_s

    def learn(self, finished: Round, drafting_s: float | None) -> None:
        """Learns from a round. `drafting_s`: what `draft_s` predicts for its drafts; None without a model's."""
        if self.active.was_reading_since(finished.started_s):
            return
        level, num_active, num_drafts = self.level, self.active.size, len(finished.proposal)
        num_tokens = num_active + num_drafts + (num_active - 1) * self._num_drafts
        self._num_drafts += RECENT * (num_drafts - self._num_drafts)
        factor = level.verifying if num_drafts else level.plain
        factor.learn(finished.verify_s / self._target_times()(num_tokens))
        if drafting_s is not None and finished.proposal.report.num_tail_tokens <= MAX_TAIL:
            level.drafting.learn(finished.propose_s / (drafting_s / level.drafting.value))
