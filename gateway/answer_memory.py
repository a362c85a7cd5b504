"""Bounds the memory of answers that are kept whole, each and in all: log-probabilities take kilobytes a token.

Sizes are estimates of what Python and the encoded answer take.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from paceline.errors import InvalidArgument, ResourceExhausted
from paceline.results import Chunk

MAX_BYTES = 512 << 20
# One answer may take 1 / ANSWER_FRACTION of it.
ANSWER_FRACTION = 4
# A character, in items, joined and encoded; a token; one log-probability, with its token's text and bytes.
CHARACTER_BYTES, TOKEN_BYTES, LOGPROB_BYTES = 8, 64, 512


class AnswerMemory:
    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_answers = self.num_bytes = 0

    @contextmanager
    def answer(self) -> Iterator["KeptAnswer"]:
        answer = KeptAnswer(self)
        self.num_answers += 1
        try:
            yield answer
        finally:
            self.num_answers -= 1
            self.num_bytes -= answer.num_bytes

    def check_one(self, num_bytes: int) -> None:
        """Raises InvalidArgument."""
        if num_bytes > (most := self.max_bytes // ANSWER_FRACTION):
            raise InvalidArgument(
                "",
                f"the answer takes more than {most} bytes at once; ask for a stream, or for fewer log-probabilities, "
                "samples or tokens",
            )

    def check_all(self, answer: "KeptAnswer") -> None:
        """Raises ResourceExhausted if all take too much, and this one no less than its share."""
        if self.num_bytes > self.max_bytes and answer.num_bytes * self.num_answers >= self.max_bytes:
            raise ResourceExhausted(f"answers take more than {self.max_bytes} bytes in all; ask for a stream, or later")


class KeptAnswer:
    def __init__(self, memory: AnswerMemory) -> None:
        self._memory = memory
        self.num_bytes = 0

    def keep(self, chunk: Chunk) -> None:
        """Raises InvalidArgument and ResourceExhausted."""
        num_bytes = size_of(chunk)
        self.num_bytes += num_bytes
        self._memory.num_bytes += num_bytes
        self._memory.check_one(self.num_bytes)
        self._memory.check_all(self)

    def pass_on(self, chunk: Chunk) -> None:
        """Raises InvalidArgument."""
        self._memory.check_one(size_of(chunk))


def size_of(chunk: Chunk) -> int:
    num_characters = len(chunk.text) + len(chunk.reasoning) + sum(len(each.arguments) for each in chunk.tool_calls)
    scored = (chunk.logprobs, chunk.prompt_logprobs)
    num_logprobs = sum(1 + len(each.top_token_ids) for tokens in scored for each in tokens)
    return num_characters * CHARACTER_BYTES + len(chunk.token_ids) * TOKEN_BYTES + num_logprobs * LOGPROB_BYTES
