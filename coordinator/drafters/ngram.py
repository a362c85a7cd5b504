"""The n-gram drafter: proposes the tokens that followed the newest tokens earlier in this prompt and completion.

An n-gram of order n is n tokens in a row: n - 1 tokens of context, and the token that follows them. Unless an operator
says otherwise the orders are 4, 3 and 2, so contexts have 3, 2 and 1 tokens. The drafter needs no model and no message.
"""

import asyncio

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape, NgramTable, Prediction
from coordinator.reports import DraftedBy, DraftReport

# Of the tokens in a row that were predicted, as many tell something. Of 7,200 tokens of SmolLM2-135M, in answers to 60
# prompts of Spec-Bench's kind, a prediction by a match of 3 was right for 0.64 of those behind a wrong one, 0.57 behind
# one that was right, 0.67 behind two, 0.75 behind three, 0.84 behind four and more; by a match of 2 for 0.50 and 0.51,
# by a match of 1 for 0.25.
LONGEST_RUN = 4
# Tokens counted without a pause: a few milliseconds. Then other generations run.
CHUNK_TOKENS = 512


class NgramDrafter:
    """One generation's n-grams. It proposes ids without probabilities, so rule `match` verifies them."""

    def __init__(self, shape: NgramShape = DEFAULT_SHAPE) -> None:
        self._window, self._longest = shape.window_tokens, shape.longest_match
        self._table = NgramTable(shape)
        self._num_taken = 0
        # Of the newest generated tokens in a row, how many the table predicted.
        self._run = 0
        self._hits: list[tuple[tuple[int, int], bool]] = []

    async def outlook(self, context: Context, num_tokens: int) -> list[tuple[int, int]]:
        """The kinds of the next tokens: the length of each one's match, and how many tokens in a row were right."""
        await self._take(context)
        chain = self._chain(context.tokens[-self._longest :], num_tokens)
        return [_kind(prediction, self._run + index) for index, prediction in enumerate(chain)]

    def take_hits(self) -> list[tuple[tuple[int, int], bool]]:
        """Of each generated token since the last call that was predicted: its kind, and whether it was right."""
        hits, self._hits = self._hits, []
        return hits

    async def match(self, context: Context) -> int:
        """Length of the longest end of the context that was seen before, of the lengths that the orders have; 0: none."""
        await self._take(context)
        prediction = self._table.predict(context.tokens[-self._longest :])
        return prediction.match_length if prediction is not None else 0

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        if num_draft_tokens < 1:
            # Count the new tokens later, when a proposal needs them.
            return Proposal()
        await self._take(context)
        chain = self._chain(context.tokens[-self._longest :], num_draft_tokens)
        return Proposal(
            [prediction.token for prediction in chain], report=DraftReport(drafter=DraftedBy.NGRAM, reason="no match")
        )

    def truncate(self, length: int) -> None:
        """Does nothing: only decided tokens of the context are counted."""

    def release(self) -> None:
        pass

    async def _take(self, context: Context) -> None:
        """Counts the tokens that are not counted yet, at most the last window. The first call counts the prompt."""
        tokens, num_prompt_tokens = context.tokens, len(context.request.prompt)
        self._num_taken = max(self._num_taken, len(tokens) - self._window)
        while self._num_taken < len(tokens):
            end = min(len(tokens), self._num_taken + CHUNK_TOKENS)
            for index in range(self._num_taken, end):
                if index >= num_prompt_tokens:
                    self._compare(tokens[max(0, index - self._longest) : index], tokens[index])
                self._table.add(tokens[index])
            self._num_taken = end
            if end < len(tokens):
                await asyncio.sleep(0)

    def _compare(self, tail: list[int], token: int) -> None:
        """Remembers whether the table would have predicted the token."""
        prediction = self._table.predict(tail)
        is_right = prediction is not None and prediction.token == token
        if prediction is not None:
            self._hits.append((_kind(prediction, self._run), is_right))
        self._run = self._run + 1 if is_right else 0

    def _chain(self, tail: list[int], num_tokens: int) -> list[Prediction]:
        """Predicts tokens one after the other, each from the tokens before it.

        Returns `num_tokens` tokens, or none: every token that was predicted has a continuation itself. The newest token
        has one too, if it was predicted: it was seen earlier as well.
        """
        chain: list[Prediction] = []
        while len(chain) < num_tokens and (prediction := self._table.predict(tail)) is not None:
            chain.append(prediction)
            tail = [*tail, prediction.token][-self._longest :]
        return chain


def _kind(prediction: Prediction, run: int) -> tuple[int, int]:
    return prediction.match_length, min(run, LONGEST_RUN)
