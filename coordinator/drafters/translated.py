"""Drafts of a model with another tokenizer than the target's: tokens that both have.

The draft server restricts the model's distribution to these tokens and answers with the target's ids, so the rules, the noise
and the policy are those of any draft. Here the context becomes the draft model's tokens (`coordinator.vocabulary_translation`).
"""

from collections.abc import Sequence
from dataclasses import replace

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.remote.placement import Placement
from coordinator.request import Request
from coordinator.vocabulary_translation import DraftContext, Translation
from paceline.checks import require
from paceline.v1 import propose_pb2


class TranslatedDrafter(RemoteDrafter):
    def __init__(
        self, placement: Placement, request: Request, deadline: DraftDeadline, translation: Translation
    ) -> None:
        self._shared = translation.shared
        self._read_context = DraftContext(translation, request.prompt)
        # The target's context, which grows.
        self._target_tokens: Sequence[int] = request.prompt
        # Where the first draft comes in the target's context.
        self._target_position = 0
        # The draft server can't apply a grammar to the target's tokens: what it forbids is cut, or rejected.
        read = replace(request, prompt=self._read_context.tokens.copy(), grammar=None, grammar_text="")
        super().__init__(placement, read, deadline)

    @property
    def stops_early(self) -> bool:
        # Of the target's tokens the server drafts several at once only with masks.
        model_info = self._placement.link.model_info
        return model_info is not None and model_info.num_mask_tokens == 0

    def absence(self, context: Context) -> str:
        reason = super().absence(context)
        return reason or ("" if self._read_context.tokens else "the draft model has no token of the text")

    def num_cached(self, context: Context) -> int:
        """Returns as many tokens fewer than the context's as the draft model has to read."""
        return len(context) - (self._num_tokens(context, ()) - self._sequence.length)

    def truncate(self, length: int) -> None:
        self._read_context.extend(self._target_tokens)
        super().truncate(length)

    def _cached_length(self, length: int) -> int:
        return self._read_context.offset(length)

    def _prepare(self, context: Context, after: Sequence[int]) -> list[int]:
        self._target_tokens, self._target_position = context.tokens, len(context) + len(after)
        self._read_context.extend(context.tokens)
        tokens = [*self._read_context.tokens, *self._read_context.after(after)]
        # The newest token may be none there.
        self._sequence.truncate(len(tokens) - 1)
        return tokens

    def _num_tokens(self, context: Context, after: Sequence[int]) -> int:
        self._read_context.extend(context.tokens)
        return len(self._read_context.tokens) + len(self._read_context.after(after))

    @property
    def _vocab_size(self) -> int:
        return self._target_vocab_size

    def _fill(
        self, propose: propose_pb2.Propose, num_draft_tokens: int, min_probability: float, num_choices: int,
        guess: Sequence[int] = (),
    ) -> None:  # fmt: skip
        super()._fill(propose, num_draft_tokens, min_probability, num_choices, guess)
        propose.target_position = self._target_position

    def _check(self, proposal: Proposal, num_asked: int) -> None:
        super()._check(proposal, num_asked)
        # Any other would be several tokens in the draft model's context.
        other = next((token for token in proposal.tokens if token not in self._shared.in_target), None)
        require(other is None, "tokens", other, "tokens that both models have")
