"""As many draft tokens as bring the rest of the answer soonest, from measured alpha and costs.

Expected tokens of a round of k drafts: (1 - alpha^(k+1)) / (1 - alpha) (2211.17192,
equation 1). Its time: a Propose of k and a Verify of k + 1 rows, as lately measured here,
queues and wire and all, so the batch size of the moment is in it. Before the first of
them, a drafter that has missed context must read it: the prompt, or what was decoded
without drafts.
"""

import math

from coordinator.context import Context
from coordinator.draft_length.costs import Costs
from coordinator.round import Round
from paceline.sampling import Bounds

# A request starts from the acceptance of all requests, which counts as this many of its own decided drafts.
PRIOR_WEIGHT = 12.0
# What a decided draft still counts after another one.
MEMORY = 0.98
# Nobody knows when an answer ends: it is taken to go on for as long as it has, and so many tokens more.
FIRST_REST = 128
# What does not pay is tried again, as often as takes this share of the time: two rounds of one draft, for in the
# first the drafter reads what it missed, and only the second shows what a draft costs. All that share a forward try
# together: one alone would cost the others as much, and not show what it costs when all do.
PROBE_SHARE = 0.01
PROBE_ROUNDS = 2
# What drafts must promise to save where many share a forward, for they do not all come to the next one at once: with a
# tenth, eight at once came to 0.95 and 0.96 of plain.
BATCH_MARGIN = 0.2


class GoodputLength:
    """One generation's rule. `costs` is shared by all with the same drafter."""

    def __init__(self, bounds: Bounds, costs: Costs) -> None:
        self._bounds = bounds
        self._costs = costs
        self._decided = PRIOR_WEIGHT
        self._accepted = PRIOR_WEIGHT * costs.alpha
        # Context tokens: those the drafter had read when it last proposed, and all there are now.
        self._num_read = 0
        self._num_tokens = 0
        # When this generation last had drafts, or its first round.
        self._drafted_s = math.inf
        # The probe it last took part in, or did not, and what is left of that.
        self._probe = costs.probe
        self._probe_rounds = 0

    @property
    def alpha(self) -> float:
        """Chance that a decided draft is accepted, as far as known."""
        return self._accepted / self._decided

    def choose(self, context: Context) -> int:
        self._num_tokens = len(context)
        reading_s = self._costs.reading_s(self._num_tokens - self._num_read)
        rest = min(context.num_remaining, FIRST_REST + context.num_generated)
        # A batch of which a part drafts falls apart into two, with a forward for each: all draft, or none.
        others = 1 - 1 / self._costs.num_beside
        alpha = self.alpha + others * (self._costs.alpha - self.alpha)
        if self._may_be_optimistic(reading_s):
            # Without drafts nothing more would be learned of it.
            alpha += math.sqrt(alpha * (1 - alpha) / self._decided)
        if self._best(alpha, rest, reading_s, others * BATCH_MARGIN) > 0:
            return max(1, self._best(self.alpha, rest, reading_s))
        return self._draft_to_probe(reading_s)

    def learn(self, finished: Round) -> None:
        self._costs.learn(finished)
        if self._drafted_s == math.inf or len(finished.proposal) > 0:
            self._drafted_s = finished.verified_s
        if len(finished.proposal) > 0 and finished.proposal.num_tail_tokens > 0:
            self._num_read = self._num_tokens
        for index in range(finished.num_decided):
            self._decided = self._decided * MEMORY + 1
            self._accepted = self._accepted * MEMORY + (index < finished.outcome.num_accepted)

    def _draft_to_probe(self, reading_s: float) -> int:
        """1 in a probe's rounds, else 0."""
        if self._is_probe_due(reading_s):
            self._costs.begin_probe(reading_s)
        if self._probe is not self._costs.probe:
            self._probe = self._costs.probe
            self._probe_rounds = PROBE_ROUNDS if reading_s <= self._probe.reading_s else 0
        if self._probe_rounds == 0:
            return 0
        self._probe_rounds -= 1
        return 1

    def _is_probe_due(self, reading_s: float) -> bool:
        """Costs may have changed while nobody drafted, alpha while this request did not."""
        since_s = min(self._drafted_s, self._costs.drafted_s)
        without_s, with_s = self._costs.rounds_s(most=1, is_optimistic=False)
        price_s = reading_s + PROBE_ROUNDS * (with_s - without_s)
        return self._costs.now_s - max(since_s, self._costs.probe.began_s) > price_s / PROBE_SHARE

    def _may_be_optimistic(self, reading_s: float) -> bool:
        """Hope, of one standard deviation, is for what costs nothing to try, and nobody else."""
        return reading_s == 0 and self._costs.num_beside == 1

    def _best(self, alpha: float, rest: int, reading_s: float, margin: float = 0.0) -> int:
        """The k by which `rest` tokens come soonest; drafts must save a share of `margin` of the time without."""
        rounds_s = self._costs.rounds_s(self._bounds.max, self._may_be_optimistic(reading_s))
        best, best_s = 0, math.inf
        tokens = chance = 1.0
        for k, round_s in enumerate(rounds_s):
            rest_s = rest / tokens * round_s + reading_s if k > 0 else (1 - margin) * rest * round_s
            if k >= self._bounds.min and rest_s < best_s:
                best, best_s = k, rest_s
            # Expected tokens of a round with one more draft.
            chance *= alpha
            tokens += chance
        return best
