"""n-grams where they have a long match, the draft model elsewhere."""

from coordinator.context import Context
from coordinator.draft_length import DraftLengthRule
from coordinator.drafting import Drafter
from coordinator.drafting.ngram import NgramDrafter
from coordinator.drafting.proposer import Proposer, Source

# Tokens of context that must have been seen before; once is enough. Measured with SmolLM2-135M on half of the
# project's prompts, 200 tokens each: of 4 n-gram drafts the target accepts, greedy and at temperature 0.8,
#     2.5 and 1.6 after a match of 3 tokens seen once; 3.0 and 2.2 if seen more often
#     1.2 and 0.9 after 2 tokens
#     0.5 and 0.4 after 1 token
# A draft model with an acceptance rate of 0.5 has 0.9, with one of 0.7 it has 1.8, and takes its time for them. On 16
# of Spec-Bench's prompts, a run each against plain, 2 tokens gave 1.37 (k = 4) and 1.43 (adaptive), 3 gave 1.31 and
# 1.35.
LONG_MATCH = 2


class HybridProposer(Proposer):
    """Two drafters of one generation. While n-grams propose, the model's cache lags; its next command brings the
    longer tail."""

    def __init__(
        self, ngram: NgramDrafter, ngram_length: DraftLengthRule, model: Drafter, model_length: DraftLengthRule
    ) -> None:
        self._ngram = ngram
        self._by_ngram, self._by_model = Source(ngram, ngram_length), Source(model, model_length)
        super().__init__(self._by_ngram, self._by_model)

    async def choose(self, context: Context) -> Source:
        return self._by_ngram if await self._ngram.match(context) >= LONG_MATCH else self._by_model
