"""The job behind Verify: one forward over the tail and the drafts, and a draw at each of the k + 1 positions."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.engine.draws import Draw, Drawn, FromOutside, GumbelMax, Likeliest, Outside
from paceline.engine.job import Job
from paceline.engine.sequence import Sequence
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.sampling import Rule

_NO_SUPPORT: NDArray[np.int64] = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Under `match` k + 1 tokens. Under `rejection` the bonus token, and per draft p on its support and outside it."""

    tokens: list[int]
    outsides: list[Outside]
    queued_us: int
    computed_us: int


class VerifyJob(Job):
    """Draws at the last tail token and at each draft: row i sees the drafts before it as context."""

    def __init__(
        self, sequence: Sequence, tail: list[int], drafts: list[int], supports: list[NDArray[np.int64]], rule: Rule
    ) -> None:
        super().__init__(sequence, tail + drafts)
        self._num_drafts = len(drafts)
        self._supports = [*supports, _NO_SUPPORT]
        self._rule = rule
        # The position of the first draft, and the noise's round_start.
        self._round_start = sequence.length + len(tail)
        self._drawn: list[Drawn] = []

    def draws(self, num_rows: int) -> list[Draw | None]:
        first_drawn = len(self.pending) - (self._num_drafts + 1 - len(self._drawn))
        return [
            self._draw(len(self._drawn) + row - first_drawn) if row >= first_drawn else None for row in range(num_rows)
        ]

    def absorb(self, drawn: list[Drawn]) -> None:
        self._drawn += drawn

    @property
    def result(self) -> Verdict:
        if self._rule is Rule.MATCH:
            return Verdict([t for t in self._drawn if isinstance(t, int)], [], self.queued_us, self.computed_us)
        outsides = [drawn for drawn in self._drawn if isinstance(drawn, Outside)]
        return Verdict([outsides[-1].token], outsides[:-1], self.queued_us, self.computed_us)

    def _draw(self, index: int) -> Draw:
        """The draw that judges draft `index`, or gives the bonus token after the last."""
        options = self.sequence.options
        position = self._round_start + index
        common = options.sampling, options.banned_token_ids(position)
        if self._rule is Rule.MATCH:
            return (
                Likeliest(*common)
                if options.sampling.is_greedy
                else GumbelMax(*common, match_key(options.seed, position))
            )
        purpose = Purpose.OUTSIDE if index < self._num_drafts else Purpose.BONUS
        key = make_key(options.seed, self._round_start, position, purpose)
        return FromOutside(*common, self._supports[index], uniform(key))
