"""The hybrid proposer: n-grams if the newest tokens have a long match, otherwise the draft model."""

from coordinator.context import Context
from coordinator.draft_length import DraftLengthRule
from coordinator.drafting import Drafter
from coordinator.drafting.ngram import NgramDrafter
from coordinator.drafting.proposer import Proposer, Source

# n-grams propose after a match of at least this many tokens, which the context must contain at least once before.
# Measured with SmolLM2-135M on half of the project's prompts, 200 tokens each. Of 4 n-gram drafts the target accepts,
# greedy and at temperature 0.8:
#     2.5 and 1.6 after a match of 3 tokens seen once; 3.0 and 2.2 after 3 tokens seen more often
#     1.2 and 0.9 after 2 tokens
#     0.5 and 0.4 after 1 token
# Of 4 drafts of a model, the target accepts 0.9 at an acceptance rate of 0.5, and 1.8 at 0.7, but the model takes time.
# Speed relative to plain decoding on 16 prompts of Spec-Bench, one run each: 1.37 (k = 4) and 1.43 (adaptive) with 2
# tokens, 1.31 and 1.35 with 3.
LONG_MATCH = 2


class HybridProposer(Proposer):
    """One generation's n-gram drafter and model drafter.

    While n-grams propose, the draft model reads nothing. Its next command has a longer tail.
    """

    def __init__(
        self, ngram: NgramDrafter, ngram_length: DraftLengthRule, model: Drafter, model_length: DraftLengthRule
    ) -> None:
        self._ngram = ngram
        self._by_ngram, self._by_model = Source(ngram, ngram_length), Source(model, model_length)
        super().__init__(self._by_ngram, self._by_model)

    async def choose(self, context: Context) -> Source:
        return self._by_ngram if await self._ngram.match(context) >= LONG_MATCH else self._by_model
