"""The hierarchical drafter: n-grams guess the draft model's tokens, which it checks in one forward.

A draft for the draft (Leviathan, Kalman, Matias 2211.17192, section 6). A right guess saves a step, a wrong one costs an
extra token; neither changes the proposal.
"""

from collections.abc import Hashable, Sequence

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, Resources
from coordinator.drafters.model import StandbyDrafter, make_model
from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.rates import Rates
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.remote.place import DraftPlace

# Prior rates of right guesses, by the length of the n-gram match.
PRIOR_RATES = {3: 0.6, 2: 0.5, 1: 0.25}
# Weight of the prior in guesses, and decay of older guesses per new one.
PRIOR_WEIGHT, DECAY = 4.0, 0.98
# Cost of one more token in a draft model's forward, in forwards of one token.
EXTRA_TOKEN_STEPS = 0.2


class HierarchicalDrafter(RemoteDrafter):
    """Guesses use only decided tokens and own drafts, so a seed repeats them."""

    name = "hierarchical"

    def __init__(self, place: DraftPlace, request: Request, deadline: DraftDeadline, ngram: NgramDrafter) -> None:
        super().__init__(place, request, deadline)
        self._ngram = ngram
        self._rates = Rates(_prior_rate, PRIOR_WEIGHT, DECAY)

    async def propose(
        self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        if num_draft_tokens < 2 or after or self.absence(context):
            return await super().propose(context, num_draft_tokens, least_confidence, after)
        # No draft depends on the last one.
        kinds = await self._ngram.candidates(context, num_draft_tokens - 1)
        guess = (await self._ngram.propose(context, best_num_guesses([self._rates[kind] for kind in kinds]))).tokens
        proposal = await self._draft(context, num_draft_tokens, least_confidence, guess=guess)
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


def _make(resources: Resources, request: Request, place: DraftPlace, ngram: NgramDrafter) -> RemoteDrafter:
    if place.translation is not None:
        # The guesses would be the target's tokens.
        return make_model(resources, request, place)
    return HierarchicalDrafter(place, request, resources.deadlines[place.model], ngram)


def _fixed(resources: Resources, request: Request) -> Drafter:
    ngram, place = NgramDrafter(resources.ngram_shape), resources.draft_place(request)
    return ngram if place is None else StandbyDrafter(_make(resources, request, place, ngram), ngram)


def _adaptive(resources: Resources, request: Request) -> DrafterSet:
    ngram = NgramDrafter(resources.ngram_shape)
    models = [_make(resources, request, place, ngram) for place in resources.draft_places(request)]
    return DrafterSet(models=models, standby=[ngram])


FACTORY = Factory(_fixed, _adaptive)
