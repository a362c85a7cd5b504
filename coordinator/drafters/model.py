"""The draft model, with n-grams while it is unavailable."""

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ahead import AheadDrafter, has_own_device, may_draft_ahead
from coordinator.drafters.drafter import Drafter, DrafterSet, Factory, Resources
from coordinator.drafters.following import FollowingDrafter, may_follow
from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.drafters.translated import TranslatedDrafter
from coordinator.remote.placement import Placement
from coordinator.reports import DraftReport
from coordinator.request import Request


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


def make_model(resources: Resources, request: Request, placement: Placement) -> RemoteDrafter:
    deadline, targets = resources.deadlines[placement.model], resources.targets
    if placement.translation is not None:
        return TranslatedDrafter(placement, request, deadline, placement.translation)
    if (
        targets is not None
        and may_follow(request)
        and any(each.link.has_draft(placement.link) for each in targets.endpoints)
    ):
        return FollowingDrafter(placement, request, deadline)
    # Asked here too, for it costs each round a little even while it drafts nothing ahead.
    if targets is not None and may_draft_ahead(request) and has_own_device(placement.link, targets):
        return AheadDrafter(placement, request, deadline, targets, resources.ahead_stats)
    return RemoteDrafter(placement, request, deadline)


def make_models(resources: Resources, request: Request) -> list[RemoteDrafter]:
    """Makes a drafter for each draft model that the request may use."""
    return [make_model(resources, request, placement) for placement in resources.draft_placements(request)]


def make_model_or_ngram(resources: Resources, request: Request) -> Drafter:
    ngram, placement = NgramDrafter(resources.ngram_shape), resources.draft_placement(request)
    return ngram if placement is None else StandbyDrafter(make_model(resources, request, placement), ngram)


def _adaptive(resources: Resources, request: Request) -> DrafterSet:
    return DrafterSet(models=make_models(resources, request), standby=[NgramDrafter(resources.ngram_shape)])


FACTORY = Factory(make_model_or_ngram, _adaptive)
