"""The n-gram drafter: proposes the tokens that followed the newest tokens earlier in this prompt and completion.

An n-gram of order n is n tokens in a row: n - 1 tokens of context, and the token that follows them. The drafter uses
orders 4, 3 and 2, so contexts of 3, 2 and 1 tokens. The longest context that was seen before decides: its most frequent
continuation is proposed, or of equally frequent ones the most recent. The drafter needs no model and no message.
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from coordinator.acceptance import DraftedBy, Proposal
from coordinator.context import Context

# Tokens of context, longest first.
CONTEXT_LENGTHS = (3, 2, 1)
LONGEST_MATCH = CONTEXT_LENGTHS[0]
DEFAULT_WINDOW_TOKENS = 4096
# Of the tokens in a row that were predicted, as many tell something. Of 7,200 tokens of SmolLM2-135M, in answers to 60
# prompts of Spec-Bench's kind, a prediction by a match of 3 was right for 0.64 of those behind a wrong one, 0.57 behind
# one that was right, 0.67 behind two, 0.75 behind three, 0.84 behind four and more; by a match of 2 for 0.50 and 0.51,
# by a match of 1 for 0.25.
LONGEST_RUN = 4
# Tokens counted without a pause: a few milliseconds. Then other generations run.
CHUNK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Prediction:
    """A predicted token. It followed the last `match_length` tokens `times_seen` times."""

    token: int
    match_length: int
    times_seen: int


class NgramTable:
    """Counts of the n-grams within the last `window` tokens."""

    def __init__(self, window: int = DEFAULT_WINDOW_TOKENS) -> None:
        assert window >= 1, "a window holds at least a token"
        self._window = window
        self._tokens: deque[int] = deque()
        self._num_added = 0
        self._continuations: dict[tuple[int, ...], _Continuations] = {}

    def __len__(self) -> int:
        """Number of contexts: fewer than 3 for each token of the window."""
        return len(self._continuations)

    def add(self, token: int) -> None:
        """Adds the next token. If the window is full, drops the oldest."""
        if len(self._tokens) == self._window:
            self._forget_oldest()
        recent = tuple(islice(reversed(self._tokens), LONGEST_MATCH))[::-1]
        for length in CONTEXT_LENGTHS:
            if length <= len(recent):
                context = recent[-length:]
                if context not in self._continuations:
                    self._continuations[context] = _Continuations()
                self._continuations[context].add(token, self._num_added)
        self._tokens.append(token)
        self._num_added += 1

    def predict(self, tail: Sequence[int]) -> Prediction | None:
        """Predicts the token after `tail`, from the longest end of `tail` that was seen before; None if none was."""
        for length in CONTEXT_LENGTHS:
            if length <= len(tail) and (seen := self._continuations.get(tuple(tail[-length:]))) is not None:
                token, times_seen = seen.best()
                return Prediction(token, length, times_seen)
        return None

    def _forget_oldest(self) -> None:
        """Drops the oldest token and the n-grams that begin with it."""
        oldest = tuple(islice(self._tokens, LONGEST_MATCH + 1))
        for length in CONTEXT_LENGTHS:
            if length < len(oldest):
                seen = self._continuations[oldest[:length]]
                seen.forget_oldest(oldest[length])
                if not seen:
                    del self._continuations[oldest[:length]]
        self._tokens.popleft()


class _Continuations:
    """The tokens that followed one context, and the best of them."""

    __slots__ = ("_best", "_seen")

    def __init__(self) -> None:
        # Token -> how often it was seen, and its last position. Positions differ, so no two values are equal.
        self._seen: dict[int, tuple[int, int]] = {}
        # None: `best` must search for it.
        self._best: int | None = None

    def __len__(self) -> int:
        return len(self._seen)

    def add(self, token: int, position: int) -> None:
        times = self._seen[token][0] + 1 if token in self._seen else 1
        self._seen[token] = (times, position)
        # This token is the most recent, so it wins a tie.
        if len(self._seen) == 1 or (self._best is not None and times >= self._seen[self._best][0]):
            self._best = token

    def forget_oldest(self, token: int) -> None:
        """Removes the token's oldest occurrence. Its last position stays."""
        times, position = self._seen[token]
        if times > 1:
            self._seen[token] = (times - 1, position)
        else:
            del self._seen[token]
        if token == self._best:
            # Search only when `best` is called: a context of one frequent token may have thousands of continuations.
            self._best = None

    def best(self) -> tuple[int, int]:
        """The most frequent token, ties to the most recent, and how often it was seen."""
        if self._best is None:
            self._best = max(self._seen, key=self._seen.__getitem__)
        return self._best, self._seen[self._best][0]


class NgramDrafter:
    """One generation's n-grams. It proposes ids without probabilities, so rule `match` verifies them."""

    def __init__(self, window: int = DEFAULT_WINDOW_TOKENS) -> None:
        """`window`: how many of the newest tokens of prompt and completion are counted."""
        self._window = window
        self._table = NgramTable(window)
        self._num_taken = 0
        # Of the newest generated tokens in a row, how many the table predicted.
        self._run = 0
        self._hits: list[tuple[tuple[int, int], bool]] = []

    async def outlook(self, context: Context, num_tokens: int) -> list[tuple[int, int]]:
        """The kinds of the next tokens: the length of each one's match, and how many tokens in a row were right."""
        await self._take(context)
        chain = self._chain(context.tokens[-LONGEST_MATCH:], num_tokens)
        return [_kind(prediction, self._run + index) for index, prediction in enumerate(chain)]

    def take_hits(self) -> list[tuple[tuple[int, int], bool]]:
        """Of each generated token since the last call that was predicted: its kind, and whether it was right."""
        hits, self._hits = self._hits, []
        return hits

    async def match(self, context: Context) -> int:
        """Length of the longest end of the context that was seen before: 0 to LONGEST_MATCH tokens."""
        await self._take(context)
        prediction = self._table.predict(context.tokens[-LONGEST_MATCH:])
        return prediction.match_length if prediction is not None else 0

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        if num_draft_tokens < 1:
            # Count the new tokens later, when a proposal needs them.
            return Proposal()
        await self._take(context)
        chain = self._chain(context.tokens[-LONGEST_MATCH:], num_draft_tokens)
        return Proposal([prediction.token for prediction in chain], drafter=DraftedBy.NGRAM, reason="no match")

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
                    self._compare(tokens[max(0, index - LONGEST_MATCH) : index], tokens[index])
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
            tail = [*tail, prediction.token][-LONGEST_MATCH:]
        return chain


def _kind(prediction: Prediction, run: int) -> tuple[int, int]:
    return prediction.match_length, min(run, LONGEST_RUN)
