"""The arithmetic of beam search: pure, no I/O.

Follows transformers' `generate(num_beams=width, do_sample=False, early_stopping=False)`: the score of a finished hypothesis
is its log-probability / num_tokens ^ length_penalty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# Top next tokens of a hypothesis with log-probabilities, most likely first.
NextTokens = Sequence[tuple[int, float]]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    tokens: Tokens = ()
    logprob: float = 0.0

    def extended(self, token: int, logprob: float) -> "Hypothesis":
        # transformers sums in float32.
        return Hypothesis((*self.tokens, token), float(np.float32(self.logprob) + np.float32(logprob)))


@dataclass(frozen=True, slots=True)
class BeamRules:
    """`width`: live hypotheses; `max_tokens`: maximum length of a hypothesis."""

    width: int
    length_penalty: float
    ending_ids: frozenset[int]
    max_tokens: int

    @property
    def num_next(self) -> int:
        """Returns the next tokens a step needs per live hypothesis, even if all ending tokens are among them."""
        return self.width + len(self.ending_ids)

    def score(self, hypothesis: Hypothesis, length: int) -> float:
        return hypothesis.logprob / float(length) ** self.length_penalty


@dataclass(slots=True)
class Beams:
    """Up to `width` live and finished hypotheses. Lists are replaced, not mutated, so a shallow copy is independent."""

    rules: BeamRules
    live: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    # Scores and hypotheses, best first.
    finished: list[tuple[float, Hypothesis]] = field(default_factory=list)
    is_over: bool = False

    @property
    def best(self) -> Hypothesis:
        return self.finished[0][1]

    def step(self, next_tokens: Sequence[NextTokens]) -> None:
        """`next_tokens`: per live hypothesis, at least `rules.num_next`, or the whole vocabulary."""
        rules, length = self.rules, len(self.live[0].tokens) + 1
        candidates = [
            hypothesis.extended(token, logprob)
            for hypothesis, of_this in zip(self.live, next_tokens, strict=True)
            for token, logprob in of_this
        ]
        candidates.sort(key=lambda candidate: -candidate.logprob)
        is_last = length == rules.max_tokens
        ends = [is_last or candidate.tokens[-1] in rules.ending_ids for candidate in candidates]
        # Only the best `width` candidates can finish, as in transformers.
        ended = [each for each, is_end in list(zip(candidates, ends, strict=True))[: rules.width] if is_end]
        finished = self.finished + [(rules.score(each, length), each) for each in ended]
        self.finished = sorted(finished, key=lambda pair: -pair[0])[: rules.width]
        going_on = [each for each, is_end in zip(candidates, ends, strict=True) if not is_end]
        self.live = going_on[: rules.width]
        self.is_over = not self.live or (
            len(self.finished) == rules.width and rules.score(self.live[0], length) <= self.finished[-1][0]
        )
