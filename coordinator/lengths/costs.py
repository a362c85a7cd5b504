"""What rounds cost lately, and how often drafts were accepted: shared by all generations with one drafter."""

from coordinator.rounds import Round

# What an observation still counts after another one: about fifty rounds are remembered.
MEMORY = 0.98
# How firmly the slope's first guess is held, in squared draft tokens.
GUESS_WEIGHT = 0.25
# A time beyond this many times the expected one is cut: a replay or a long catch-up says nothing of the next round.
OUTLIER = 3.0
# Hopeful: too low a guess would stop drafting, and with it what could correct the guess.
FIRST_ALPHA = 0.95
# Context tokens a Propose brings along when the round before it had drafts too. A longer tail is read once: taken
# for the price of every draft, it would end drafting for good.
NORMAL_TAIL = 2


class LinearCost:
    """seconds = a + b k, by least squares with fading memory."""

    def __init__(self, guessed_slope: float, free_start: bool) -> None:
        """Until different k were seen, b is `guessed_slope` of the time; or, with `free_start`, a is 0."""
        self._guessed_slope = guessed_slope
        self._free_start = free_start
        self._weight = 0.0
        self._mean_k = 0.0
        self._mean_s = 0.0
        self._var_k = 0.0
        self._cov = 0.0

    @property
    def is_known(self) -> bool:
        return self._weight > 0

    def learn(self, k: int, seconds: float) -> None:
        if self._weight > 4:
            seconds = min(seconds, OUTLIER * self.predict(k))
        self._weight = self._weight * MEMORY + 1
        rate = 1 / self._weight
        delta_k, delta_s = k - self._mean_k, seconds - self._mean_s
        self._mean_k += rate * delta_k
        self._mean_s += rate * delta_s
        self._var_k = (1 - rate) * (self._var_k + rate * delta_k * delta_k)
        self._cov = (1 - rate) * (self._cov + rate * delta_k * delta_s)

    def predict(self, k: int) -> float:
        """Seconds, > 0."""
        through_zero = self._mean_s / max(1.0, self._mean_k)
        guess = through_zero if self._free_start else self._guessed_slope * self._mean_s
        slope = max(0.0, (self._cov + GUESS_WEIGHT * guess) / (self._var_k + GUESS_WEIGHT))
        return max(1e-6, 0.2 * self._mean_s, self._mean_s + slope * (k - self._mean_k))


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
    """Times of Propose and Verify by number of drafts, of reading what the drafter missed, and alpha over all requests."""

    def __init__(self) -> None:
        self._propose = LinearCost(guessed_slope=0.0, free_start=True)
        # A forward of few rows costs little more than one of a single row.
        self._verify = LinearCost(guessed_slope=0.02, free_start=False)
        self._reading = ReadingCost()
        self.alpha = FIRST_ALPHA
        # When a round last ended, and when one last had drafts: seconds of `time.perf_counter`.
        self.now_s = 0.0
        self.drafted_s = 0.0

    def learn(self, finished: Round) -> None:
        k, num_tail_tokens = len(finished.proposal), finished.proposal.num_tail_tokens
        propose_s = finished.proposed_s - finished.started_s
        if k > 0 and num_tail_tokens <= NORMAL_TAIL:
            self._propose.learn(k, propose_s)
        elif k > 0 and self._propose.is_known:
            self._reading.learn(num_tail_tokens, propose_s - self._propose.predict(k))
        self._verify.learn(k, finished.verified_s - finished.proposed_s)
        for index in range(finished.num_decided):
            accepted = index < finished.outcome.num_accepted
            self.alpha += (1 - MEMORY) * (accepted - self.alpha)
        self.now_s = finished.verified_s
        if k > 0:
            self.drafted_s = self.now_s

    def round_s(self, k: int) -> float:
        """Expected seconds of a round of k drafts; without measurements every k costs as much."""
        if not self._verify.is_known:
            return 1.0
        return self._verify.predict(k) + self.propose_s(k)

    def propose_s(self, k: int) -> float:
        """Expected seconds until k drafts are there, by a drafter that has read the context; 0 until known."""
        return self._propose.predict(k) if k > 0 and self._propose.is_known else 0.0

    def reading_s(self, num_tokens: int) -> float:
        """Expected seconds for a drafter to read context it has missed; 0 until known."""
        return self._reading.predict(num_tokens) if num_tokens > NORMAL_TAIL else 0.0
