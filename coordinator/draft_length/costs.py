"""Costs of recent rounds, and how often drafts are accepted. All generations with the same drafter share them."""

from dataclasses import dataclass
from statistics import fmean

from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.draft_length.estimates import LinearCost, ReadingCost
from coordinator.round import Round

# The first guess of alpha. It is high, because after a low guess no draft is proposed that could correct the guess.
FIRST_ALPHA = 0.95
# The first guess counts as this many decided drafts.
FIRST_ALPHA_WEIGHT = 4.0
# Factor on the weight of older drafts, for each decided draft.
ALPHA_MEMORY = 0.995
# Tail tokens of a Propose if the round before it had drafts too. A longer tail is read only once. If its time counted
# as the time of drafts, the rule would stop drafting for ever.
NORMAL_TAIL = 2
# After this many rounds in a row beside a prompt, learn from such rounds too: there may be no others.
MOST_SKIPPED = 64


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of a Propose and of a Verify, as functions of k."""

    propose: LinearCost
    verify: LinearCost

    def predict(self, k: int) -> float:
        """Expected seconds of a round with k drafts. Without measurements 1 for every k."""
        if not self.verify.is_known:
            return 1.0
        return self.verify.predict(k) + (self.propose.predict(k) if k > 0 and self.propose.is_known else 0.0)

    def optimistic(self, k: int) -> float:
        """Optimistic seconds of a round with k drafts: less than expected where the estimate is uncertain."""
        if not self.verify.is_known:
            return 1.0
        return self.verify.optimistic(k) + (self.propose.optimistic(k) if k > 0 and self.propose.is_known else 0.0)

    def for_batch_ratio(self, ratio: float) -> "RoundCost":
        """A first estimate for a batch `ratio` times as large: all sequences wait for the drafts of each."""
        return RoundCost(self.propose.with_uncertainty(ratio), self.verify.with_uncertainty(ratio))


@dataclass(frozen=True, slots=True)
class Probe:
    """A test whether drafts pay off: its start, and the time its first generation needs to read missed context."""

    began_s: float
    reading_s: float


class Costs:
    """Learns the times of Propose and Verify by k, the time to read missed context, and alpha over all requests.

    Sequences share forwards, so the drafts of all of them make a round longer. So times are learned against the mean k
    of rounds that ran together. The expected time for k is the time if all sequences propose k tokens. The cost of a
    draft depends on the number of active generations, so times are kept for each power of two of that number. Rounds
    that ran beside the reading of a prompt are not used.
    """

    def __init__(self, active: ActiveGenerations) -> None:
        """`active`: all active generations, also those with another drafter or none."""
        self._active = active
        # Number of rounds in a row that were not used.
        self._num_skipped = 0
        # A forward of a few rows costs little more than a forward of one row.
        self._round = RoundCost(LinearCost(0.0, free_start=True), LinearCost(guessed_slope=0.02, free_start=False))
        # `_round` is the cost for `_size` active generations. `_rounds` has all costs, by the size's number of bits.
        self._size = 1
        self._rounds = {1: self._round}
        self._reading = ReadingCost()
        # Rounds that other rounds may still run beside.
        self._recent: list[Round] = []
        # Results of `rounds_s`, kept until more is learned.
        self._tables: dict[tuple[int, bool], list[float]] = {}
        self.alpha = FIRST_ALPHA
        self._alpha_weight = FIRST_ALPHA_WEIGHT
        # When the last round ended, and the last round with drafts (time.perf_counter).
        self.now_s = 0.0
        self.drafted_s = 0.0
        self.probe = Probe(0.0, 0.0)

    def learn(self, finished: Round) -> None:
        for index in range(finished.num_decided):
            accepted = index < finished.outcome.num_accepted
            self._alpha_weight = self._alpha_weight * ALPHA_MEMORY + 1
            self.alpha += (accepted - self.alpha) / self._alpha_weight
        self.now_s = finished.verified_s
        if len(finished.proposal) > 0:
            self.drafted_s = self.now_s
        # Sequences that share forwards end their rounds at nearly the same time. Half a round later all have ended.
        middle_s = (finished.started_s + finished.verified_s) / 2
        over = [each for each in self._recent if each.verified_s <= middle_s]
        self._recent = [each for each in self._recent if each.verified_s > middle_s] + [finished]
        if over:
            self._learn_times(over)

    @property
    def num_beside(self) -> int:
        """Number of active generations, at least 1."""
        return self._active.size

    def rounds_s(self, most: int, is_optimistic: bool) -> list[float]:
        """Expected seconds of a round with k drafts, for every k from 0 to `most`.

        With `is_optimistic`: less than expected where the estimate is uncertain.
        """
        cost = self._round_cost()
        table = self._tables.get((most, is_optimistic))
        if table is None:
            of_k = cost.optimistic if is_optimistic else cost.predict
            table = self._tables[most, is_optimistic] = list(map(of_k, range(most + 1)))
        return table

    def reading_s(self, num_tokens: int) -> float:
        """Expected seconds for a drafter to read context that it missed; 0 until measured."""
        return self._reading.predict(num_tokens) if num_tokens > NORMAL_TAIL else 0.0

    def begin_probe(self, reading_s: float) -> None:
        self.probe = Probe(self.now_s, reading_s)

    def _learn_times(self, beside: list[Round]) -> None:
        """Learns one measurement from rounds that ran together: they share forwards, so their times are not separate."""
        cost, drafted = self._round_cost(), [each for each in beside if len(each.proposal) > 0]
        drafting = [each.propose_s for each in drafted if each.proposal.num_tail_tokens <= NORMAL_TAIL]
        k = fmean(len(each.proposal) for each in beside)
        self._learn_reading([each for each in drafted if each.proposal.num_tail_tokens > NORMAL_TAIL], cost, k)
        is_news = not cost.verify.is_known or (bool(drafting) and not cost.propose.is_known)
        was_disturbed = self._active.was_reading_since(min(each.started_s for each in beside))
        if was_disturbed and not is_news and self._num_skipped < MOST_SKIPPED:
            self._num_skipped += 1
            return
        self._num_skipped = 0
        self._tables.clear()
        if drafting:
            cost.propose.learn(k, fmean(drafting))
        cost.verify.learn(k, fmean(each.verify_s for each in beside))

    def _learn_reading(self, rounds: list[Round], cost: RoundCost, k: float) -> None:
        drafting_s = cost.propose.predict(k) if cost.propose.is_known else 0.0
        for each in rounds:
            self._reading.learn(each.proposal.num_tail_tokens, each.propose_s - drafting_s)

    def _round_cost(self) -> RoundCost:
        """The cost for the present number of active generations."""
        size = self._active.size
        if size != self._size:
            level = size.bit_length()
            if level not in self._rounds:
                self._rounds[level] = self._round.for_batch_ratio(size / self._size)
            self._round = self._rounds[level]
            self._size = size
            self._tables.clear()
        return self._round
