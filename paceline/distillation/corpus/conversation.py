"""A conversation of one user message and one answer: while the target writes it, and as a record."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.distillation.corpus.frame import ChatFrame


@dataclass(frozen=True, slots=True)
class Record:
    """A finished conversation, with the target's distribution at each token that it wrote.

    Only the likeliest tokens of a distribution are kept. The mass of all others is one minus the sum of these.
    """

    tokens: NDArray[np.int32]  # [num_tokens]
    # Tokens before the answer.
    num_prompt_tokens: int
    # Positions of the tokens that the target wrote: the answer, and the part of the user's message that it wrote.
    written: NDArray[np.int32]  # [num_written]
    top_ids: NDArray[np.int32]  # [num_written, top]
    top_logprobs: NDArray[np.float16]  # [num_written, top], likeliest first

    @property
    def num_written(self) -> int:
        return len(self.written)

    @property
    def answer(self) -> "Record":
        """The same conversation, with only the answer counted as written."""
        first = int(np.searchsorted(self.written, self.num_prompt_tokens))
        kept = (self.written[first:], self.top_ids[first:], self.top_logprobs[first:])
        return Record(self.tokens, self.num_prompt_tokens, *kept)


@dataclass(frozen=True, slots=True)
class Style:
    """How the tokens of a user's message or of an answer are sampled."""

    # 0 takes the likeliest token.
    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    """A user's message, or its beginning if `is_whole` is False: then the target writes the rest."""

    tokens: list[int]
    is_whole: bool


class Conversation:
    """A conversation that is written token by token: the rest of the user's message, then the answer."""

    def __init__(
        self, number: int, frame: ChatFrame, num_cached: int, user: Style, answer: Style, question: Question
    ) -> None:
        """`num_cached`: how many of the frame's first tokens are already in the cache."""
        self.number = number
        self._frame = frame
        self._answer = answer
        # `tokens` are in the cache. `pending` must be fed before the next token is sampled.
        self.tokens = frame.before[:num_cached]
        self.pending = frame.before[num_cached:] + question.tokens
        self.style = user
        self.is_done = False
        # Tokens written in the present part: the user's message or the answer.
        self._num_written = 0
        self._num_prompt_tokens = 0
        self._positions: list[int] = []
        self._top_ids: list[NDArray[np.int32]] = []
        self._top_logprobs: list[NDArray[np.float16]] = []
        if question.is_whole:
            self._hand_over()

    def fed(self) -> None:
        """The pending tokens were fed: they are in the cache."""
        self.tokens += self.pending
        self.pending = []

    def write(self, token: int, ends: bool, top_ids: NDArray[np.int32], top_logprobs: NDArray[np.float16]) -> None:
        """Takes the token sampled after the fed tokens, and the likeliest tokens of its distribution: [top] each.

        `ends`: whether it is an EOS token.
        """
        is_answer = self._num_prompt_tokens > 0
        self._num_written += 1
        is_full = self._num_written >= self.style.max_tokens
        # The chat template ends the user's message, so an EOS token there is dropped.
        if is_answer or not ends:
            self._positions.append(len(self.tokens))
            self._top_ids.append(top_ids)
            self._top_logprobs.append(top_logprobs)
            self.pending.append(token)
        if not (ends or is_full):
            return
        if is_answer:
            self.fed()
            self.is_done = True
        else:
            self._hand_over()

    @property
    def record(self) -> Record:
        tokens = np.array(self.tokens, np.int32)
        written = np.array(self._positions, np.int32)
        return Record(tokens, self._num_prompt_tokens, written, np.stack(self._top_ids), np.stack(self._top_logprobs))

    def _hand_over(self) -> None:
        self.pending += self._frame.after
        self._num_prompt_tokens = len(self.tokens) + len(self.pending)
        self.style = self._answer
        self._num_written = 0
