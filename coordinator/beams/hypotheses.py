"""The arithmetic of beam search: pure, no I/O. Defines the words of this package.

    hypothesis   tokens behind the prompt, and the sum of their log-probabilities
    live         the best hypotheses that go on: at most `width`, all of the same length
    finished     the best that ended, by an ending token or for lack of room: at most `width`
    score        of a finished one: its log-probability / (its number of tokens) ^ length penalty
    step         every live hypothesis meets its likeliest next tokens, and the best of all these go on

The rules are those of transformers' `generate(num_beams=width, do_sample=False)`, with its `early_stopping=False`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

# The likeliest next tokens behind a hypothesis, likeliest first, and their log-probabilities.
NextTokens = Sequence[tuple[int, float]]
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Tokens behind the prompt, and the sum of their log-probabilities."""

    tokens: Tokens = ()
    logprob: float = 0.0

    def extended(self, token: int, logprob: float) -> "Hypothesis":
        # Summed as the reference does: in float32.
        return Hypothesis((*self.tokens, token), float(np.float32(self.logprob) + np.float32(logprob)))


@dataclass(frozen=True, slots=True)
class BeamRules:
    """What a search must know. `width`: hypotheses that live at once; `max_tokens`: the longest there can be."""

    width: int
    length_penalty: float
    ending_ids: frozenset[int]
    max_tokens: int

    @property
    def num_next(self) -> int:
        """Next tokens that a step must know of each live hypothesis: if all that can end it are among the likeliest,
        `width` are left that go on."""
        return self.width + len(self.ending_ids)

    def score(self, hypothesis: Hypothesis, length: int) -> float:
        return hypothesis.logprob / float(length) ** self.length_penalty


@dataclass(slots=True)
class Beams:
    """One search: what lives and what has finished. Neither list is changed, so a copy of the object is a copy of all."""

    rules: BeamRules
    live: list[Hypothesis] = field(default_factory=lambda: [Hypothesis()])
    # With their scores, the best first.
    finished: list[tuple[float, Hypothesis]] = field(default_factory=list)
    is_over: bool = False

    @property
    def best(self) -> Hypothesis:
        """When the search is over."""
        return self.finished[0][1]

    def step(self, next_tokens: Sequence[NextTokens]) -> None:
        """`next_tokens`: of each live hypothesis at least `rules.num_next`, or all there are."""
        rules, length = self.rules, len(self.live[0].tokens) + 1
        candidates = [
            hypothesis.extended(token, logprob)
            for hypothesis, of_this in zip(self.live, next_tokens, strict=True)
            for token, logprob in of_this
        ]
        candidates.sort(key=lambda candidate: -candidate.logprob)
        is_last = length == rules.max_tokens
        ends = [is_last or candidate.tokens[-1] in rules.ending_ids for candidate in candidates]
        # An end counts only where it is among the best `width`: behind these it is no better than what goes on.
        ended = [each for each, is_end in list(zip(candidates, ends, strict=True))[: rules.width] if is_end]
        finished = self.finished + [(rules.score(each, length), each) for each in ended]
        self.finished = sorted(finished, key=lambda pair: -pair[0])[: rules.width]
        going_on = [each for each, is_end in zip(candidates, ends, strict=True) if not is_end]
        self.live = going_on[: rules.width]
        self.is_over = not self.live or (
            len(self.finished) == rules.width and rules.score(self.live[0], length) <= self.finished[-1][0]
        )
