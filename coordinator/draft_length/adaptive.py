"""The goodput rule: proposes the k that finishes the answer soonest, from measured alpha and costs.

The expected tokens of a round with k drafts are (1 - alpha^(k+1)) / (1 - alpha) (2211.17192, equation 1). The round's
time is a Propose of k tokens and a Verify of k + 1 rows. The coordinator measures both, with queues and network, so the
times include the effect of the batch size. Before the first drafts a drafter must read the context that it missed: the
prompt, or tokens that were decoded without drafts.
"""

import math

from coordinator.context import Context
from coordinator.draft_length.costs import Costs
from coordinator.round import Round
from paceline.sampling import Bounds
from paceline.theory import expected_tokens

# A request's alpha starts from the alpha of all requests, which counts as this many of its own decided drafts.
PRIOR_WEIGHT = 12.0
# Factor on the weight of older drafts, for each decided draft.
MEMORY = 0.98
# An answer's end is not known. The rule expects as many more tokens as there are, plus this number.
FIRST_REST = 128
# While drafts do not pay off, the rule tests them again (a probe). Probes may take this fraction of the time. All
# generations that share forwards probe together: a probe of one would cost the others as much time, and would not show
# the cost when all draft.
PROBE_SHARE = 0.01
# A probe is two rounds with one draft: in the first the drafter reads missed context, so only the second shows the cost
# of a draft.
PROBE_ROUNDS = 2
# The fraction of time that drafts must be expected to save if many generations share forwards, because these do not all
# come back for the next forward at once. With 0.1, eight generations ran at 0.95 and 0.96 of plain speed.
BATCH_MARGIN = 0.2


class GoodputLength:
    """One generation's rule. All generations with the same drafter share `costs`."""

    def __init__(self, bounds: Bounds, costs: Costs) -> None:
        self._bounds = bounds
        self._costs = costs
        self._decided = PRIOR_WEIGHT
        self._accepted = PRIOR_WEIGHT * costs.alpha
        # Context tokens that the drafter had read when it last proposed, and all context tokens.
        self._num_read = 0
        self._num_tokens = 0
        # When this generation last had drafts; before that, when its first round ended (time.perf_counter).
        self._drafted_s = math.inf
        # The last probe that this generation knows, and the number of rounds left in it.
        self._probe = costs.probe
        self._probe_rounds = 0

    @property
    def alpha(self) -> float:
        """Estimated chance that a decided draft is accepted."""
        return self._accepted / self._decided

    @property
    def reason_for_none(self) -> str:
        return f"does not pay at {self._costs.num_beside} at once"

    def choose(self, context: Context) -> int:
        self._num_tokens = len(context)
        reading_s = self._costs.reading_s(self._num_tokens - self._num_read)
        rest = min(context.num_remaining, FIRST_REST + context.num_generated)
        # If only a part of a batch drafts, the batch falls apart into two, each with its own forwards. So many active
        # generations use the alpha of all: then all draft, or none.
        others = 1 - 1 / self._costs.num_beside
        alpha = self.alpha + others * (self._costs.alpha - self.alpha)
        if self._may_be_optimistic(reading_s):
            # One standard deviation more: without drafts the estimate of alpha could not improve.
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
        """1 in the rounds of a probe, otherwise 0."""
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
        """Whether it is time for a probe: costs and alpha may have changed after the last drafts."""
        since_s = min(self._drafted_s, self._costs.drafted_s)
        without_s, with_s = self._costs.rounds_s(most=1, is_optimistic=False)
        price_s = reading_s + PROBE_ROUNDS * (with_s - without_s)
        return self._costs.now_s - max(since_s, self._costs.probe.began_s) > price_s / PROBE_SHARE

    def _may_be_optimistic(self, reading_s: float) -> bool:
        """Whether to use optimistic estimates: only if drafts need no reading, and delay no other generation."""
        return reading_s == 0 and self._costs.num_beside == 1

    def _best(self, alpha: float, rest: int, reading_s: float, margin: float = 0.0) -> int:
        """The k that gives `rest` tokens soonest. Drafts must save the fraction `margin` of the time without drafts."""
        rounds_s = self._costs.rounds_s(self._bounds.max, self._may_be_optimistic(reading_s))
        best, best_s = 0, math.inf
        of_k = zip(rounds_s, expected_tokens(alpha, self._bounds.max), strict=True)
        for k, (round_s, tokens) in enumerate(of_k):
            rest_s = rest / tokens * round_s + reading_s if k > 0 else (1 - margin) * rest * round_s
            if k >= self._bounds.min and rest_s < best_s:
                best, best_s = k, rest_s
        return best
