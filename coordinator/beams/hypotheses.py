"""The arithmetic of beam search: pure, no I/O.

Follows transformers' `generate(num_beams=width, do_sample=False, early_stopping=False)`: the score of a finished hypothesis
is its log-probability / num_tokens ^ length_penalty.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from paceline.errors import InvalidArgument
from paceline.grammar import Guide

# Top next tokens of a hypothesis with log-probabilities, most likely first.
NextTokens = Sequence[tuple[int, float]]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    tokens: Tokens = ()
    logprob: float = 0.0
    # Under an output format: its own, or that of the hypothesis it extends. None without a format.
    guide: Guide | None = field(default=None, compare=False)

    def extended(self, token: int, logprob: float) -> "Hypothesis":
        # transformers sums in float32.
        return Hypothesis((*self.tokens, token), float(np.float32(self.logprob) + np.float32(logprob)), self.guide)

    def guided(self) -> "Hypothesis | None":
        """Returns the hypothesis with a guide of its own; None if the format does not allow its last token."""
        if self.guide is None:
            return self
        guide = self.guide.fork()
        try:
            # Not by the mask: the library may refuse a token that its mask allows.
            guide.is_over(self.tokens)
        except InvalidArgument:
            return None
        return replace(self, guide=guide)

    @property
    def is_over(self) -> bool:
        """Whether the output's format allows nothing more."""
        return self.guide is not None and self.guide.is_over(self.tokens)


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
        """`next_tokens`: per live hypothesis, at least `rules.num_next`, or all that may follow."""
        rules, length = self.rules, len(self.live[0].tokens) + 1
        candidates = [
            hypothesis.extended(token, logprob)
            for hypothesis, of_this in zip(self.live, next_tokens, strict=True)
            for token, logprob in of_this
        ]
        candidates.sort(key=lambda candidate: -candidate.logprob)
        is_last = length == rules.max_tokens
        ends = [candidate.tokens[-1] in rules.ending_ids for candidate in candidates]
        # Only the best `width` candidates can finish, as in transformers.
        ended = [each for each, is_end in list(zip(candidates, ends, strict=True))[: rules.width] if is_end]
        going_on = [each for each, is_end in zip(candidates, ends, strict=True) if not is_end]
        # Any number of next tokens may complete a format, so those are among the `width` kept: as ending tokens they would
        # need more than `num_next`.
        kept = [guided for each in going_on[: rules.width] if (guided := each.guided()) is not None]
        ended += [each for each in kept if is_last or each.is_over]
        self.live = [each for each in kept if not (is_last or each.is_over)]
        finished = self.finished + [(rules.score(each, length), each) for each in ended]
        self.finished = sorted(finished, key=lambda pair: -pair[0])[: rules.width]
        self.is_over = not self.live or (
            len(self.finished) == rules.width and rules.score(self.live[0], length) <= self.finished[-1][0]
        )
