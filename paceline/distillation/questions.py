"""User messages of conversations.

On its own the target asks almost only for advice, plans and recipes, so most messages begin with openings by people.
Some openings refer to a text, an earlier answer of the target.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files

import numpy as np

from paceline.distillation.conversations import Question, Record

# Share of messages about a text, given prompts aside.
TEXT_SHARE = 0.25
# Share of the rest that begins with an opening.
OPENING_SHARE = 0.75
# TEXT_MARK is replaced by a text. The target completes openings that end in GOES_ON.
TEXT_MARK, GOES_ON = "{text}", "..."
MAX_ANSWERS_A_TEXT = 3
MIN_ANSWER_TOKENS = 32
MAX_TEXT_TOKENS = 512
NUM_ANSWERS_KEPT = 1024
# A message that the target writes alone.
OWN = Question([], is_whole=False)


@dataclass(frozen=True, slots=True)
class Opening:
    before: list[int]
    after: list[int]
    is_about_text: bool
    is_whole: bool

    @classmethod
    def of(cls, line: str, encode: Callable[[str], list[int]]) -> "Opening":
        before, mark, after = line.replace("\\n", "\n").partition(TEXT_MARK)
        is_whole = bool(mark) and not after.endswith(GOES_ON)
        return cls(encode(before), encode(after.removesuffix(GOES_ON)), bool(mark), is_whole)

    def about(self, text: list[int]) -> Question:
        return Question(self.before + text + self.after, self.is_whole)


def read_openings(encode: Callable[[str], list[int]]) -> list[Opening]:
    lines = files("paceline.distillation").joinpath("openings.txt").read_text(encoding="utf-8").splitlines()
    return [Opening.of(line, encode) for line in lines if line and not line.startswith("#")]


class Questions:
    """Alternates, endlessly, between a given prompt and a message that the target writes or completes."""

    def __init__(
        self, prompts: Sequence[list[int]], openings: Sequence[Opening], ends: Sequence[int], seed: int
    ) -> None:
        self._prompts = prompts
        self._plain = [each for each in openings if not each.is_about_text]
        self._about_text = [each for each in openings if each.is_about_text]
        self._ends = ends
        self._answers: deque[list[int]] = deque(maxlen=NUM_ANSWERS_KEPT)
        self._random = np.random.default_rng(seed)

    @property
    def longest(self) -> int:
        openings = [len(each.before) + len(each.after) for each in self._plain + self._about_text]
        return max([*map(len, self._prompts), *(MAX_TEXT_TOKENS + each for each in openings)], default=0)

    def keep(self, record: Record) -> None:
        answer: list[int] = [
            each for each in record.tokens[record.num_prompt_tokens :].tolist() if each not in self._ends
        ]
        if len(answer) >= MIN_ANSWER_TOKENS:
            self._answers.append(answer)

    def __iter__(self) -> Iterator[Question]:
        while True:
            if self._prompts:
                yield Question(self._prompts[self._below(len(self._prompts))], is_whole=True)
            yield self._unfinished()

    def _unfinished(self) -> Question:
        if self._about_text and self._answers and self._random.random() < TEXT_SHARE:
            return self._about_text[self._below(len(self._about_text))].about(self._text())
        if self._plain and self._random.random() < OPENING_SHARE:
            return Question(self._plain[self._below(len(self._plain))].before, is_whole=False)
        return OWN

    def _text(self) -> list[int]:
        count = 1 + self._below(MAX_ANSWERS_A_TEXT)
        answers = [self._answers[self._below(len(self._answers))] for _ in range(count)]
        return [token for answer in answers for token in answer][:MAX_TEXT_TOKENS]

    def _below(self, end: int) -> int:
        return int(self._random.integers(end))
