"""A conversation of one turn while the target writes it, and as it is kept."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.distillation.frame import ChatFrame


@dataclass(frozen=True, slots=True)
class Record:
    """A finished conversation, and what the target's distribution was before each token it wrote.

    The rest of the distribution's mass, outside the likeliest few, is one minus their sum.
    """

    tokens: NDArray[np.int32]  # [num_tokens]
    # Tokens before the answer.
    num_prompt_tokens: int
    # Positions of what the target wrote: the answer, and the user's turn if that is its own too.
    written: NDArray[np.int32]  # [num_written]
    top_ids: NDArray[np.int32]  # [num_written, top]
    top_logprobs: NDArray[np.float16]  # [num_written, top], likeliest first

    @property
    def num_written(self) -> int:
        return len(self.written)

    @property
    def answer(self) -> "Record":
        """The same conversation, of which the answer alone counts as written."""
        first = int(np.searchsorted(self.written, self.num_prompt_tokens))
        kept = (self.written[first:], self.top_ids[first:], self.top_logprobs[first:])
        return Record(self.tokens, self.num_prompt_tokens, *kept)


@dataclass(frozen=True, slots=True)
class Style:
    """How one author's words are drawn; 0 takes the likeliest."""

    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    """A user's turn: whole, or how it begins, and the target writes the rest."""

    tokens: list[int]
    is_whole: bool


class Conversation:
    """Written token by token: what is missing of the user's turn, then the answer."""

    def __init__(
        self, number: int, frame: ChatFrame, num_cached: int, user: Style, answer: Style, question: Question
    ) -> None:
        """`num_cached`: how many of the frame's first tokens are in the cache."""
        self.number = number
        self._frame = frame
        self._answer = answer
        # In the cache, and to be fed before the next is drawn.
        self.tokens = frame.before[:num_cached]
        self.pending = frame.before[num_cached:] + question.tokens
        self.style = user
        self.is_done = False
        # Of the author at work.
        self._num_written = 0
        self._num_prompt_tokens = 0
        self._positions: list[int] = []
        self._top_ids: list[NDArray[np.int32]] = []
        self._top_logprobs: list[NDArray[np.float16]] = []
        if question.is_whole:
            self._hand_over()

    def fed(self) -> None:
        """What was pending is in the cache."""
        self.tokens += self.pending
        self.pending = []

    def write(self, token: int, ends: bool, top_ids: NDArray[np.int32], top_logprobs: NDArray[np.float16]) -> None:
        """Takes the token drawn after what was fed, and the distribution's top."""
        is_answer = self._num_prompt_tokens > 0
        self._num_written += 1
        is_full = self._num_written >= self.style.max_tokens
        # The user's turn is ended by what the template puts there.
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
