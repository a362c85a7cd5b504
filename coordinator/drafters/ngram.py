"""The n-gram drafter: proposes the tokens that followed the newest tokens earlier in this prompt and completion.

An n-gram of order n is n - 1 tokens of context and the token that follows them. By default the orders are 4, 3 and 2. The
drafter needs no model and no message.
"""

import asyncio

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import DrafterSet, Factory, LookupDrafter
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape, NgramTable, Prediction
from coordinator.reports import DraftReport

# Tokens predicted in a row that are told apart: the next one is right more often the longer the run, up to about this.
MAX_RUN = 4
# Tokens counted without a pause, so that other generations run in between.
CHUNK_TOKENS = 512
# Length of the match, and of the run of right predictions before.
Kind = tuple[int, int]


class NgramDrafter(LookupDrafter):
    """One generation's n-grams. Proposes ids without probabilities, so rule `match` verifies them."""

    name = "ngram"

    def __init__(self, shape: NgramShape = DEFAULT_SHAPE) -> None:
        self._window, self._longest = shape.window_tokens, shape.longest_match
        self._table = NgramTable(shape)
        self._num_seen = 0
        # How many of the newest generated tokens in a row the table predicted.
        self._run = 0
        self._hits: list[tuple[Kind, bool]] = []

    async def candidates(self, context: Context, num_tokens: int) -> list[Kind]:
        await self._update(context)
        chain = self._chain(context.tokens[-self._longest :], num_tokens)
        return [_kind(prediction, self._run + index) for index, prediction in enumerate(chain)]

    def take_hits(self) -> list[tuple[Kind, bool]]:
        hits, self._hits = self._hits, []
        return hits

    async def match(self, context: Context) -> int:
        """Returns how many of the newest tokens match an n-gram's context; 0 if none do."""
        await self._update(context)
        prediction = self._table.predict(context.tokens[-self._longest :])
        return prediction.match_length if prediction is not None else 0

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        if num_draft_tokens < 1:
            # Count the new tokens later, when a proposal needs them.
            return Proposal()
        await self._update(context)
        chain = self._chain(context.tokens[-self._longest :], num_draft_tokens)
        return Proposal(
            [prediction.token for prediction in chain], report=DraftReport(drafter=self.name, reason="no match")
        )

    async def _update(self, context: Context) -> None:
        """Counts the new tokens within the window. The first call counts the prompt."""
        tokens, num_prompt_tokens = context.tokens, len(context.request.prompt)
        self._num_seen = max(self._num_seen, len(tokens) - self._window)
        while self._num_seen < len(tokens):
            end = min(len(tokens), self._num_seen + CHUNK_TOKENS)
            for index in range(self._num_seen, end):
                if index >= num_prompt_tokens:
                    self._compare(tokens[max(0, index - self._longest) : index], tokens[index])
                self._table.add(tokens[index])
            self._num_seen = end
            if end < len(tokens):
                await asyncio.sleep(0)

    def _compare(self, tail: list[int], token: int) -> None:
        prediction = self._table.predict(tail)
        is_right = prediction is not None and prediction.token == token
        if prediction is not None:
            self._hits.append((_kind(prediction, self._run), is_right))
        self._run = self._run + 1 if is_right else 0

    def _chain(self, tail: list[int], num_tokens: int) -> list[Prediction]:
        """Predicts tokens one after the other, each from the tokens before it.

        Returns `num_tokens` predictions or none: a predicted token was seen before, so it has a continuation itself.
        """
        chain: list[Prediction] = []
        while len(chain) < num_tokens and (prediction := self._table.predict(tail)) is not None:
            chain.append(prediction)
            tail = [*tail, prediction.token][-self._longest :]
        return chain


def _kind(prediction: Prediction, run: int) -> Kind:
    return prediction.match_length, min(run, MAX_RUN)


FACTORY = Factory(
    lambda resources, request: NgramDrafter(resources.ngram_shape),
    lambda resources, request: DrafterSet([NgramDrafter(resources.ngram_shape)]),
)
