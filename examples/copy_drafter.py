"""A custom drafter: proposes what followed the newest token's last occurrence in the prompt."""

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import Drafter
from coordinator.request import Request


class CopyDrafter(Drafter):
    """Serves one request."""

    def __init__(self, prompt: list[int]) -> None:
        self.prompt = prompt
        self.last_index = {token: index for index, token in enumerate(prompt)}

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        index = self.last_index.get(context.tokens[-1])
        if index is None:
            return Proposal()  # this round is plain decoding
        return Proposal(self.prompt[index + 1 : index + 1 + num_draft_tokens])


def make_drafter(request: Request) -> CopyDrafter:
    return CopyDrafter(request.prompt)
