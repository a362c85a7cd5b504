"""The job behind Propose: feed the tail, then draft token by token."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.engine.draws import Draw, Drawn, FromSupport, GumbelMax, Likeliest, Supported
from paceline.engine.job import Job
from paceline.engine.sequence import Sequence
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.sampling import Drawing


@dataclass(frozen=True, slots=True)
class Support:
    """The few token ids on which q is not zero, and q there."""

    max_size: int
    min_mass: float


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens; per token its support and q on it, unless drawn greedily or coupled."""

    tokens: list[int]
    supports: list[NDArray[np.int64]]
    support_probs: list[NDArray[np.float32]]
    queued_us: int
    computed_us: int


class ProposeJob(Job):
    """A catch-up step over the tail, then one row a step.

    k tokens need k draws but feed only k - 1 of them: the last is the target's to judge first.
    """

    def __init__(
        self, sequence: Sequence, tail: list[int], num_draft_tokens: int, drawing: Drawing, support: Support
    ) -> None:
        super().__init__(sequence, tail)
        self._num_draft_tokens = num_draft_tokens
        self._drawing = drawing
        self._support = support
        # The position of the first draft, and the noise's round_start.
        self._round_start = sequence.length + len(tail)
        self._drawn: list[Drawn] = []

    def draws(self, num_rows: int) -> list[Draw | None]:
        is_last = num_rows == len(self.pending)
        return [None] * (num_rows - 1) + [self._draw() if is_last else None]

    def absorb(self, drawn: list[Drawn]) -> None:
        self._drawn += drawn
        if drawn and len(self._drawn) < self._num_draft_tokens:
            self.pending = [_token(drawn[0])]

    @property
    def result(self) -> Proposal:
        supported = [drawn for drawn in self._drawn if isinstance(drawn, Supported)]
        return Proposal(
            tokens=[_token(drawn) for drawn in self._drawn],
            supports=[drawn.support for drawn in supported],
            support_probs=[drawn.probs for drawn in supported],
            queued_us=self.queued_us,
            computed_us=self.computed_us,
        )

    def _draw(self) -> Draw:
        options = self.sequence.options
        position = self._round_start + len(self._drawn)
        common = options.sampling, options.banned_token_ids(position)
        if self._drawing is Drawing.GREEDY or options.sampling.is_greedy:
            return Likeliest(*common)
        if self._drawing is Drawing.COUPLED:
            return GumbelMax(*common, match_key(options.seed, position))
        key = make_key(options.seed, self._round_start, position, Purpose.DRAFT)
        return FromSupport(*common, uniform(key), self._support.max_size, self._support.min_mass)


def _token(drawn: Drawn) -> int:
    assert isinstance(drawn, int | Supported)
    return drawn if isinstance(drawn, int) else drawn.token
