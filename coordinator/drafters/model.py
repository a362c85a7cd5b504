"""The draft model, with n-grams while it is unavailable."""

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.ahead import AheadDrafter, has_own_device, may_draft_ahead
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, Resources
from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.drafters.translated import TranslatedDrafter
from coordinator.remote.place import DraftPlace
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


def make_model(resources: Resources, request: Request, place: DraftPlace) -> RemoteDrafter:
    deadline, targets = resources.deadlines[place.model], resources.targets
    if place.translation is not None:
        return TranslatedDrafter(place, request, deadline, place.translation)
    # Asked here too, for it costs each round a little even while it makes no bets.
    if targets is not None and may_draft_ahead(request) and has_own_device(place.link, targets):
        return AheadDrafter(place, request, deadline, targets, resources.bets)
    return RemoteDrafter(place, request, deadline)


def make_models(resources: Resources, request: Request) -> list[RemoteDrafter]:
    """Makes a drafter for each draft model that the request may use."""
    return [make_model(resources, request, place) for place in resources.draft_places(request)]


def make_model_or_ngram(resources: Resources, request: Request) -> Drafter:
    ngram, place = NgramDrafter(resources.ngram_shape), resources.draft_place(request)
    return ngram if place is None else StandbyDrafter(make_model(resources, request, place), ngram)


def _adaptive(resources: Resources, request: Request) -> DrafterSet:
    return DrafterSet(models=make_models(resources, request), standby=[NgramDrafter(resources.ngram_shape)])


FACTORY = Factory(make_model_or_ngram, _adaptive)
