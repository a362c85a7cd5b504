"""What rounds cost lately, and how often drafts were accepted: shared by all generations with one drafter."""

from dataclasses import dataclass
from statistics import fmean

from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.draft_length.estimates import LinearCost, ReadingCost
from coordinator.round import Round

# Hopeful: too low a guess would stop drafting, and with it what could correct the guess. It counts as so many drafts.
FIRST_ALPHA = 0.95
FIRST_ALPHA_WEIGHT = 4.0
# What a decided draft still counts after another one.
ALPHA_MEMORY = 0.995
# Context tokens a Propose brings along when the round before it had drafts too. A longer tail is read once: taken
# for the price of every draft, it would end drafting for good.
NORMAL_TAIL = 2
# Where somebody's prompt is read all the time, rounds beside it are what there is to learn from.
MOST_SKIPPED = 64


@dataclass(frozen=True, slots=True)
class RoundCost:
    """Seconds of a Propose and of a Verify against k."""

    propose: LinearCost
    verify: LinearCost

    def predict(self, k: int) -> float:
        """Without measurements every k takes as long."""
        if not self.verify.is_known:
            return 1.0
        return self.verify.predict(k) + (self.propose.predict(k) if k > 0 and self.propose.is_known else 0.0)

    def optimistic(self, k: int) -> float:
        """Seconds that it may well take, as far as is known."""
        if not self.verify.is_known:
            return 1.0
        return self.verify.optimistic(k) + (self.propose.optimistic(k) if k > 0 and self.propose.is_known else 0.0)

    def for_batch_ratio(self, ratio: float) -> "RoundCost":
        """The same to begin with, for `ratio` times as many: what each drafts, all wait for."""
        return RoundCost(self.propose.with_uncertainty(ratio), self.verify.with_uncertainty(ratio))


@dataclass(frozen=True, slots=True)
class Probe:
    """A try whether drafts pay by now: when it began, and the time its first generation has to read for it."""

    began_s: float
    reading_s: float


class Costs:
    """Times of Propose and Verify by number of drafts, of reading what the drafter missed, and alpha over all requests.

    Sequences share forwards: a round takes longer for the drafts of all that are in it, not for its own alone. So
    times are learned against the mean k of the rounds that ran beside each other; a round that asks what k costs
    asks what it would cost if all did the same. And what drafts add is another thing alone, with few and with many
    beside: each such company has times of its own. Rounds beside which a prompt was read are no measure of others.
    """

    def __init__(self, active: ActiveGenerations) -> None:
        """`active`: all generations, with this drafter or another, or none."""
        self._active = active
        # Rounds in a row of which nothing was learned.
        self._num_skipped = 0
        # A forward of few rows costs little more than one of a single row.
        self._round = RoundCost(LinearCost(0.0, free_start=True), LinearCost(guessed_slope=0.02, free_start=False))
        # That of the company whose size it is, and all by the binary digits of their sizes.
        self._size = 1
        self._rounds = {1: self._round}
        self._reading = ReadingCost()
        # Rounds that others may still be running beside.
        self._recent: list[Round] = []
        # What `rounds_s` answers until more is learned.
        self._tables: dict[tuple[int, bool], list[float]] = {}
        self.alpha = FIRST_ALPHA
        self._alpha_weight = FIRST_ALPHA_WEIGHT
        # When a round last ended, and when one last had drafts: seconds of `time.perf_counter`.
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
        # Sequences that share forwards end their rounds within moments, and half a round later all have.
        middle_s = (finished.started_s + finished.verified_s) / 2
        over = [each for each in self._recent if each.verified_s <= middle_s]
        self._recent = [each for each in self._recent if each.verified_s > middle_s] + [finished]
        if over:
            self._learn_times(over)

    @property
    def num_beside(self) -> int:
        """Generations in the company of now, at least 1."""
        return self._active.size

    def rounds_s(self, most: int, is_optimistic: bool) -> list[float]:
        """Expected seconds of a round of k drafts, for every k from 0 to `most`; `is_optimistic`: that it may well take."""
        cost = self._round_cost()
        table = self._tables.get((most, is_optimistic))
        if table is None:
            of_k = cost.optimistic if is_optimistic else cost.predict
            table = self._tables[most, is_optimistic] = list(map(of_k, range(most + 1)))
        return table

    def reading_s(self, num_tokens: int) -> float:
        """Expected seconds for a drafter to read context it has missed; 0 until known."""
        return self._reading.predict(num_tokens) if num_tokens > NORMAL_TAIL else 0.0

    def begin_probe(self, reading_s: float) -> None:
        self.probe = Probe(self.now_s, reading_s)

    def _learn_times(self, beside: list[Round]) -> None:
        """Rounds that ran beside each other tell one thing together, not as many as they are."""
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
        """That of the company of now."""
        size = self._active.size
        if size != self._size:
            level = size.bit_length()
            if level not in self._rounds:
                self._rounds[level] = self._round.for_batch_ratio(size / self._size)
            self._round = self._rounds[level]
            self._size = size
            self._tables.clear()
        return self._round
