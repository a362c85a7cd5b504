"""The hierarchical drafter: n-grams guess the draft model's tokens, which it checks in one forward pass.

A draft for the draft (Leviathan, Kalman, Matias 2211.17192, section 6). A right guess saves a step, a wrong one costs an
extra token; neither changes the proposal.
"""

from collections.abc import Hashable, Sequence

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, Resources
from coordinator.drafters.model import StandbyDrafter, make_model
from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.rates import Rates
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.remote.placement import Placement
from coordinator.request import Request

# Prior rates of right guesses, by the length of the n-gram match.
PRIOR_RATES = {3: 0.6, 2: 0.5, 1: 0.25}
# Weight of the prior in guesses, and decay of older guesses per new one.
PRIOR_WEIGHT, DECAY = 4.0, 0.98
# Cost of one more token in a draft model's forward pass, in forward passes of one token.
EXTRA_TOKEN_STEPS = 0.2


class HierarchicalDrafter(RemoteDrafter):
    """Guesses use only decided tokens and own drafts, so a seed repeats them."""

    name = "hierarchical"

    def __init__(self, placement: Placement, request: Request, deadline: DraftDeadline, ngram: NgramDrafter) -> None:
        super().__init__(placement, request, deadline)
        self._ngram = ngram
        self._rates = Rates(_prior_rate, PRIOR_WEIGHT, DECAY)

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        if num_draft_tokens < 2 or after or self.absence(context):
            return await super().propose(context, num_draft_tokens, min_probability, after)
        # No draft depends on the last one.
        kinds = await self._ngram.candidates(context, num_draft_tokens - 1)
        guess = (await self._ngram.propose(context, best_num_guesses([self._rates[kind] for kind in kinds]))).tokens
        proposal = await self._draft(context, num_draft_tokens, min_probability, guess=guess)
        self._learn(kinds, guess, proposal.tokens)
        return proposal

    def _learn(self, kinds: Sequence[Hashable], guess: list[int], drafts: list[int]) -> None:
        """Stops at the first wrong guess: the rest continue another text."""
        for kind, guessed, drafted in zip(kinds, guess, drafts, strict=False):
            self._rates.learn(kind, guessed == drafted)
            if guessed != drafted:
                return


def best_num_guesses(rates: Sequence[float]) -> int:
    """Returns how many guesses save most. `rates`: probability of each if those before it are right."""
    best, most_saved, saved, chance = 0, 0.0, 0.0, 1.0
    for num_guesses, rate in enumerate(rates, start=1):
        chance *= rate
        saved += chance - EXTRA_TOKEN_STEPS
        if saved > most_saved:
            best, most_saved = num_guesses, saved
    return best


def _prior_rate(kind: Hashable) -> float:
    assert isinstance(kind, tuple)
    match_length, _ = kind
    return PRIOR_RATES[min(match_length, max(PRIOR_RATES))]


def _make(resources: Resources, request: Request, placement: Placement, ngram: NgramDrafter) -> RemoteDrafter:
    if placement.translation is not None:
        # The guesses would be the target's tokens.
        return make_model(resources, request, placement)
    return HierarchicalDrafter(placement, request, resources.deadlines[placement.model], ngram)


def _fixed(resources: Resources, request: Request) -> Drafter:
    ngram, placement = NgramDrafter(resources.ngram_shape), resources.draft_placement(request)
    return ngram if placement is None else StandbyDrafter(_make(resources, request, placement, ngram), ngram)


def _adaptive(resources: Resources, request: Request) -> DrafterSet:
    ngram = NgramDrafter(resources.ngram_shape)
    models = [_make(resources, request, placement, ngram) for placement in resources.draft_placements(request)]
    return DrafterSet(models=models, standby=[ngram])


FACTORY = Factory(_fixed, _adaptive)
