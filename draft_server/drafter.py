"""The job behind Propose: feed the tail, then draft token by token."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from draft_server.entropy import EntropyStop
from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.logprobs import Observation
from paceline.engine.sampling.specs import Draw, Drawn, FromSupport, GumbelMax, Likeliest, Supported
from paceline.engine.scheduling.job import Job
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.sampling import Drawing


@dataclass(frozen=True, slots=True)
class Support:
    """The few token ids on which q is not zero, and q there."""

    max_size: int
    min_mass: float


@dataclass(frozen=True, slots=True)
class Wish:
    """What to propose."""

    num_draft_tokens: int
    drawing: Drawing
    support: Support
    # Stop early where the model is unsure.
    entropy: EntropyStop | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Drafted tokens; per token its support and q on it, unless drawn greedily or coupled."""

    tokens: list[int]
    supports: list[NDArray[np.int64]]
    support_probs: list[NDArray[np.float32]]
    # With the entropy rule: per drafted position, and at the one where it stopped.
    entropies: list[float]
    entropy_emas: list[float]
    # Tail tokens that the cache held already.
    cached_tokens: int
    queued_us: int
    computed_us: int


class ProposeJob(Job):
    """A catch-up step over the tail, then one row a step.

    k tokens need k draws but feed only k - 1 of them: the last is the target's to judge first.
    """

    def __init__(self, sequence: Sequence, tail: list[int], wish: Wish) -> None:
        super().__init__(sequence, tail)
        self._wish = wish
        # The position of the first draft, and the noise's round_start.
        self._round_start = sequence.length + len(tail)
        self._drawn: list[Drawn] = []

    def draws(self, num_rows: int) -> list[Draw | None]:
        is_last = num_rows == len(self.pending)
        return [None] * (num_rows - 1) + [self._draw(num_rows - 1, len(self._drawn)) if is_last else None]

    def coming_draws(self) -> list[Draw]:
        if self._wish.entropy is not None or self.sequence.options.sampling.has_penalties:
            return []
        return [self._draw(0, index) for index in range(len(self._drawn) + 1, self._wish.num_draft_tokens)]

    def observe(self, observations: list[Observation]) -> None:
        for observation in observations:
            assert self._wish.entropy is not None, "entropy is observed for the rule alone"
            self._wish.entropy.see(observation.entropy)

    def absorb(self, drawn: list[Drawn]) -> None:
        if not drawn:
            return
        if self._wish.entropy is not None and not self._wish.entropy.allows(len(self._drawn)):
            # Decided by the distribution alone; whatever was drawn with it has not been looked at.
            return
        self._drawn += drawn
        if len(self._drawn) < self._wish.num_draft_tokens:
            self.pending = [_token(drawn[0])]

    @property
    def result(self) -> Proposal:
        supported = [drawn for drawn in self._drawn if isinstance(drawn, Supported)]
        entropy = self._wish.entropy
        return Proposal(
            tokens=[_token(drawn) for drawn in self._drawn],
            supports=[drawn.support for drawn in supported],
            support_probs=[drawn.probs for drawn in supported],
            entropies=entropy.entropies if entropy is not None else [],
            entropy_emas=entropy.emas if entropy is not None else [],
            cached_tokens=self.num_cached_tokens,
            queued_us=self.queued_us,
            computed_us=self.computed_us,
        )

    def _draw(self, row: int, index: int) -> Draw:
        """The draw of draft `index`, from the logits of pending row `row`."""
        options, wish = self.sequence.options, self._wish
        position = self._round_start + index
        common = options.sampling, options.banned_token_ids(position)
        extra: Any = {"before": self.tokens_before(row), "wants_entropy": wish.entropy is not None}
        if wish.drawing is Drawing.GREEDY or options.sampling.is_greedy:
            return Likeliest(*common, **extra)
        if wish.drawing is Drawing.COUPLED:
            return GumbelMax(*common, match_key(options.seed, position), **extra)
        key = make_key(options.seed, self._round_start, position, Purpose.DRAFT)
        return FromSupport(*common, uniform(key), wish.support.max_size, wish.support.min_mass, **extra)


def _token(drawn: Drawn) -> int:
    assert isinstance(drawn, int | Supported)
    return drawn if isinstance(drawn, int) else drawn.token
