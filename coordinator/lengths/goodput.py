"""As many draft tokens as maximise expected tokens per second, from measured alpha and costs.

Expected tokens of a round of k drafts: (1 - alpha^(k+1)) / (1 - alpha) (2211.17192,
equation 1). Its time: a Propose of k and a Verify of k + 1 rows, as lately measured here,
queues and wire and all, so the batch size of the moment is in it.
"""

from coordinator.lengths.costs import Costs
from coordinator.rounds import Round
from paceline.sampling import Bounds
from paceline.theory import tokens_per_round

# A request starts from the acceptance of all requests, which counts as this many of its own decided drafts.
PRIOR_WEIGHT = 12.0
# What a decided draft still counts after another one.
MEMORY = 0.98
# A request that fell to k = 0 tries one draft after this many rounds, and each time after twice as many.
# Not sooner: the draft model must first read what it missed.
FIRST_PROBE_ROUNDS = 48
MAX_PROBE_ROUNDS = 192


class GoodputLength:
    """One generation's rule. `costs` is shared by all with the same drafter."""

    def __init__(self, bounds: Bounds, costs: Costs) -> None:
        self._bounds = bounds
        self._costs = costs
        self._decided = PRIOR_WEIGHT
        self._accepted = PRIOR_WEIGHT * costs.alpha
        self._idle_rounds = 0
        self._probe_rounds = FIRST_PROBE_ROUNDS

    @property
    def alpha(self) -> float:
        """Chance that a decided draft is accepted, as far as known."""
        return self._accepted / self._decided

    def choose(self) -> int:
        best = max(range(self._bounds.min, self._bounds.max + 1), key=lambda k: (self._tokens_per_second(k), -k))
        if best > 0:
            self._idle_rounds, self._probe_rounds = 0, FIRST_PROBE_ROUNDS
            return best
        self._idle_rounds += 1
        if self._idle_rounds < self._probe_rounds:
            return 0
        self._idle_rounds, self._probe_rounds = 0, min(2 * self._probe_rounds, MAX_PROBE_ROUNDS)
        return 1

    def learn(self, finished: Round) -> None:
        self._costs.learn(finished)
        for index in range(finished.num_decided):
            self._decided = self._decided * MEMORY + 1
            self._accepted = self._accepted * MEMORY + (index < finished.outcome.num_accepted)

    def _tokens_per_second(self, k: int) -> float:
        return tokens_per_round(min(self.alpha, 0.999), k) / self._costs.round_s(k)
