"""The draft model, with n-grams while it is unavailable."""

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.ahead import AheadDrafter, may_draft_ahead
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, Resources
from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.reports import DraftReport


class StandbyDrafter(Drafter):
    """Proposes from `ngram` while `model` is unavailable."""

    def __init__(self, model: RemoteDrafter, ngram: NgramDrafter) -> None:
        self._model = model
        self._ngram = ngram

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        absence = self._model.absence(context)
        if not absence:
            return await self._model.propose(context, num_draft_tokens)
        proposal = await self._ngram.propose(context, num_draft_tokens)
        return proposal if proposal.tokens else Proposal(report=DraftReport(reason=f"{absence}, and no match"))

    def truncate(self, length: int) -> None:
        self._model.truncate(length)

    def release(self) -> None:
        self._model.release()


def make_model(resources: Resources, request: Request) -> RemoteDrafter | None:
    place = resources.draft_place(request)
    if place is None:
        return None
    if resources.targets is not None and may_draft_ahead(request):
        return AheadDrafter(place, request, resources.deadline, resources.targets, resources.bets)
    return RemoteDrafter(place, request, resources.deadline)


def make_model_or_ngram(resources: Resources, request: Request) -> Drafter:
    ngram, model = NgramDrafter(resources.ngram_shape), make_model(resources, request)
    return ngram if model is None else StandbyDrafter(model, ngram)


def _adaptive(resources: Resources, request: Request) -> DrafterSet:
    return DrafterSet(model=make_model(resources, request), standby=[NgramDrafter(resources.ngram_shape)])


FACTORY = Factory(make_model_or_ngram, _adaptive)
