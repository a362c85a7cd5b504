"""The hybrid drafter: n-grams after a long match, otherwise the draft model. With an adaptive length the policy chooses."""

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, Resources
from coordinator.drafters.head import make_heads
from coordinator.drafters.model import make_model_or_ngram, make_models
from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.suffix import make_lookups
from coordinator.request import Request

# From this match length on, n-grams are about as accurate as a good draft model. Order 2 alone never reaches it.
LONG_MATCH = 2


class HybridDrafter(Drafter):
    """Chooses by decided tokens, so a seed repeats its text under `rejection` too."""

    def __init__(self, ngram: NgramDrafter, model: Drafter) -> None:
        self._ngram, self._model = ngram, model

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        drafter = self._ngram if await self._ngram.match(context) >= LONG_MATCH else self._model
        return await drafter.propose(context, num_draft_tokens)

    def truncate(self, length: int) -> None:
        self._ngram.truncate(length)
        self._model.truncate(length)

    def release(self) -> None:
        self._ngram.release()
        self._model.release()


def _fixed(resources: Resources, request: Request) -> HybridDrafter:
    return HybridDrafter(NgramDrafter(resources.ngram_shape), make_model_or_ngram(resources, request))


def _adaptive(resources: Resources, request: Request) -> DrafterSet:
    lookups = [*make_heads(resources, request), *make_lookups(resources, request)]
    return DrafterSet(lookups, make_models(resources, request))


FACTORY = Factory(_fixed, _adaptive)
