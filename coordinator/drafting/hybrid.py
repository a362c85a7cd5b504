"""n-grams where they have a long match, the draft model elsewhere."""

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.draft_length.hybrid import HybridLength
from coordinator.drafting import Drafter
from coordinator.drafting.ngram import NgramDrafter

# Tokens of context that must have been seen before; once is enough. Measured with SmolLM2-135M on half of the
# project's prompts, 200 tokens each: of 4 n-gram drafts the target accepts, greedy and at temperature 0.8,
#     2.5 and 1.6 after a match of 3 tokens seen once; 3.0 and 2.2 if seen more often
#     1.2 and 0.9 after 2 tokens
#     0.5 and 0.4 after 1 token
# A draft model with an acceptance rate of 0.5 has 0.9, with one of 0.7 it has 1.8, and takes its time for them: on 16
# of Spec-Bench's prompts, a run each against plain, 2 tokens came to 1.37 (k = 4) and 1.43 (adaptive), 3 to 1.31 and 1.35.
LONG_MATCH = 2


class HybridDrafter:
    """Both drafters of one generation. Which one proposes depends on decided tokens alone."""

    def __init__(self, ngram: NgramDrafter, model: Drafter, lengths: HybridLength) -> None:
        self._ngram = ngram
        self._model = model
        self._lengths = lengths

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        if await self._ngram.match(context) >= LONG_MATCH:
            # The model's cache lags meanwhile; its next command brings the longer tail.
            return await self._ngram.propose(context, min(num_draft_tokens, self._lengths.for_ngram(context)))
        return await self._model.propose(context, min(num_draft_tokens, self._lengths.for_model(context)))

    def truncate(self, length: int) -> None:
        self._ngram.truncate(length)
        self._model.truncate(length)

    def release(self) -> None:
        self._ngram.release()
        self._model.release()
