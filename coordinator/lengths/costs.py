"""What rounds cost lately, and how often drafts were accepted: shared by all generations with one drafter."""

import math
from statistics import fmean

from coordinator.rounds import Round

# What an observation still counts after another one: of reading, and of a draft decided.
MEMORY = 0.98
ALPHA_MEMORY = 0.995
# Standard deviations in shares of an expected time: of one time, of what a and b change by from one to the next,
# and of the first guess at b.
NOISE = 0.2
START_DRIFT = 0.03
SLOPE_DRIFT = 0.003
FIRST_SLOPE_DOUBT = 0.2
# A time is cut to so many of its standard deviations: that others' prompts, a replay or a catch-up were in it says
# nothing of the next round.
MOST_SURPRISE = 2.0
# Nothing is hoped to take less of what was predicted.
LEAST_HOPE = 0.2
# A time to read context beyond this many times the expected one is cut.
OUTLIER = 3.0
# Hopeful: too low a guess would stop drafting, and with it what could correct the guess. It counts as so many drafts.
FIRST_ALPHA = 0.95
FIRST_ALPHA_WEIGHT = 4.0
# Context tokens a Propose brings along when the round before it had drafts too. A longer tail is read once: taken
# for the price of every draft, it would end drafting for good.
NORMAL_TAIL = 2


class LinearCost:
    """seconds = a + b k, where both drift: a Kalman filter, all deviations in shares of the time expected.

    While k stays as it is nothing is learned of b, and nothing forgotten: only its uncertainty grows.
    """

    def __init__(self, guessed_slope: float, free_start: bool) -> None:
        """Until different k were seen, b is `guessed_slope` of the time; or, with `free_start`, a is 0."""
        self._guessed_slope = guessed_slope
        self._free_start = free_start
        self._start_s = 0.0
        self._slope_s = 0.0
        # Covariance of the two, in squared seconds.
        self._var_start = 0.0
        self._var_slope = 0.0
        self._cov = 0.0
        self.is_known = False

    def learn(self, k: float, seconds: float) -> None:
        if not self.is_known:
            self._begin(k, seconds)
            return
        expected_s = self.predict(k)
        deviation_s = MOST_SURPRISE * NOISE * expected_s
        seconds = min(max(seconds, expected_s - deviation_s), expected_s + deviation_s)
        self._var_start += (START_DRIFT * expected_s) ** 2
        self._var_slope += (SLOPE_DRIFT * expected_s) ** 2
        to_start, to_slope = self._var_start + self._cov * k, self._cov + self._var_slope * k
        variance = to_start + to_slope * k + (NOISE * expected_s) ** 2
        surprise = (seconds - self._start_s - self._slope_s * k) / variance
        self._start_s += to_start * surprise
        self._slope_s = max(0.0, self._slope_s + to_slope * surprise)
        self._var_start -= to_start * to_start / variance
        self._var_slope -= to_slope * to_slope / variance
        self._cov -= to_start * to_slope / variance

    def predict(self, k: float) -> float:
        """Seconds, > 0."""
        return max(1e-6, self._start_s + self._slope_s * k)

    def hope(self, k: float) -> float:
        """As predicted, less one standard deviation of the prediction: so a k that was not tried lately is."""
        variance = self._var_start + 2 * self._cov * k + self._var_slope * k * k
        predicted_s = self.predict(k)
        return max(LEAST_HOPE * predicted_s, predicted_s - math.sqrt(max(0.0, variance)))

    def _begin(self, k: float, seconds: float) -> None:
        self._slope_s = seconds / max(1.0, k) if self._free_start else self._guessed_slope * seconds
        self._start_s = seconds - self._slope_s * k
        self._var_start, self._var_slope = seconds * seconds, (FIRST_SLOPE_DOUBT * seconds) ** 2
        self.is_known = True


class ReadingCost:
    """seconds = c n for n context tokens that a drafter reads before it proposes, with fading memory."""

    def __init__(self) -> None:
        self._tokens = 0.0
        self._seconds = 0.0

    def learn(self, num_tokens: int, seconds: float) -> None:
        if self._tokens > 0:
            seconds = min(seconds, OUTLIER * self.predict(num_tokens))
        self._tokens = self._tokens * MEMORY + num_tokens
        self._seconds = self._seconds * MEMORY + max(0.0, seconds)

    def predict(self, num_tokens: int) -> float:
        """Seconds; 0 until something was read."""
        return self._seconds / self._tokens * num_tokens if self._tokens > 0 else 0.0


class Costs:
    """Times of Propose and Verify by number of drafts, of reading what the drafter missed, and alpha over all requests.

    Sequences share forwards: a round takes longer for the drafts of all that are in it, not for its own alone. So
    times are learned against the mean k of the rounds that ran beside each other; a round that asks what k costs
    asks what it would cost if all did the same.
    """

    def __init__(self) -> None:
        self._propose = LinearCost(guessed_slope=0.0, free_start=True)
        # A forward of few rows costs little more than one of a single row.
        self._verify = LinearCost(guessed_slope=0.02, free_start=False)
        self._reading = ReadingCost()
        # Rounds that others may still be running beside, and how many ran beside each other lately.
        self._recent: list[Round] = []
        self.num_beside = 1
        # What `rounds_s` answers until more is learned.
        self._tables: dict[tuple[int, bool], list[float]] = {}
        self.alpha = FIRST_ALPHA
        self._alpha_weight = FIRST_ALPHA_WEIGHT
        # When a round last ended, and when one last had drafts: seconds of `time.perf_counter`.
        self.now_s = 0.0
        self.drafted_s = 0.0

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

    def round_s(self, k: int) -> float:
        """Expected seconds of a round of k drafts; without measurements every k takes as long."""
        if not self._verify.is_known:
            return 1.0
        return self._verify.predict(k) + (self._propose.predict(k) if k > 0 and self._propose.is_known else 0.0)

    def rounds_s(self, most: int, hopeful: bool) -> list[float]:
        """The same for every k from 0 to `most`; or, `hopeful`, seconds that it may well take, as far as is known."""
        table = self._tables.get((most, hopeful))
        if table is None:
            table = [self._hoped_round_s(k) if hopeful else self.round_s(k) for k in range(most + 1)]
            self._tables[most, hopeful] = table
        return table

    def _hoped_round_s(self, k: int) -> float:
        if not self._verify.is_known:
            return 1.0
        return self._verify.hope(k) + (self._propose.hope(k) if k > 0 and self._propose.is_known else 0.0)

    def reading_s(self, num_tokens: int) -> float:
        """Expected seconds for a drafter to read context it has missed; 0 until known."""
        return self._reading.predict(num_tokens) if num_tokens > NORMAL_TAIL else 0.0

    def _learn_times(self, beside: list[Round]) -> None:
        """Rounds that ran beside each other tell one thing together, not as many as they are."""
        self.num_beside = len(beside)
        self._tables.clear()
        k = fmean(len(each.proposal) for each in beside)
        drafted = [each for each in beside if len(each.proposal) > 0]
        drafting = [each.propose_s for each in drafted if each.proposal.num_tail_tokens <= NORMAL_TAIL]
        if drafting:
            self._propose.learn(k, fmean(drafting))
        drafting_s = self._propose.predict(k) if self._propose.is_known else 0.0
        for each in drafted:
            if each.proposal.num_tail_tokens > NORMAL_TAIL:
                self._reading.learn(each.proposal.num_tail_tokens, each.propose_s - drafting_s)
        self._verify.learn(k, fmean(each.verify_s for each in beside))
