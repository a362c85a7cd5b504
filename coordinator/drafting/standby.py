"""The standby drafter: n-grams replace the draft model past its maximum length, or while its server is away."""

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafting.ngram import NgramDrafter
from coordinator.drafting.remote_model import RemoteDrafter


class StandbyDrafter:
    """Proposes from `model` if it is available, otherwise from `ngram`."""

    def __init__(self, model: RemoteDrafter, ngram: NgramDrafter) -> None:
        self._model = model
        self._ngram = ngram

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        absence = self._model.absence(context)
        if not absence:
            return await self._model.propose(context, num_draft_tokens)
        proposal = await self._ngram.propose(context, num_draft_tokens)
        return proposal if proposal.tokens else Proposal(reason=f"{absence}, and no match")

    def truncate(self, length: int) -> None:
        self._model.truncate(length)
        self._ngram.truncate(length)

    def release(self) -> None:
        self._model.release()
        self._ngram.release()
