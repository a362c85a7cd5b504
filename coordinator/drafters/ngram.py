"""The n-gram drafter: proposes what followed the newest tokens earlier in this context.

An n-gram of order n is n - 1 tokens of context and the next token.
"""

import asyncio

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import DrafterSet, Factory, LookupDrafter
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape, NgramTable, Prediction
from coordinator.reports import DraftReport

# Longest run of right predictions that is distinguished: longer runs predict better up to about this.
MAX_RUN = 4
# Tokens counted before yielding to other generations.
CHUNK_TOKENS = 512
# Lengths of the match, and of the run of right predictions before it.
Kind = tuple[int, int]


class NgramDrafter(LookupDrafter):
    """Proposes ids only, so `match` verifies them."""

    name = "ngram"

    def __init__(self, shape: NgramShape = DEFAULT_SHAPE) -> None:
        self._window, self._longest = shape.window_tokens, shape.longest_match
        self._table = NgramTable(shape)
        self._num_seen = 0
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
        """Returns the length of the newest tokens' match; 0 for no match."""
        await self._update(context)
        prediction = self._table.predict(context.tokens[-self._longest :])
        return prediction.match_length if prediction is not None else 0

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        if num_draft_tokens < 1:
            # New tokens are counted when a proposal needs them.
            return Proposal()
        await self._update(context)
        chain = self._chain(context.tokens[-self._longest :], num_draft_tokens)
        return Proposal(
            [prediction.token for prediction in chain], report=DraftReport(drafter=self.name, reason="no match")
        )

    async def _update(self, context: Context) -> None:
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
        """Returns all tokens or none: a predicted token was seen before, so it has a continuation."""
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
