"""Work inside a server: rows to feed, draws wanted of them, small results absorbed.

One mechanism for chunked prefill, drafting, verification and replay: each engine step
takes some rows of each active job, and hands each job what it wanted of their logits.
"""

import time
from abc import ABC, abstractmethod
from typing import Any

from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import Sample, SampleSpec, TokensBefore


class Job(ABC):
    """Base of the draft server's ProposeJob and the target server's VerifyJob."""

    def __init__(self, sequence: Sequence, tokens: list[int]) -> None:
        self.sequence = sequence
        # The cache's length when the job began: a truncate to below it drops the job.
        self.start = sequence.length
        # Tokens still to be fed, in order.
        self.pending = tokens
        # Tokens the command brought that the cache held already (prefix caching).
        self.num_cached_tokens = 0
        # When the command came, by `time.perf_counter`.
        self.arrived_s = time.perf_counter()
        self._computed_s = 0.0

    @abstractmethod
    def specs(self, num_rows: int) -> list[SampleSpec | None]:
        """What is wanted of the first `num_rows` pending rows; None where logits do not matter."""

    def multi_step_specs(self) -> list[SampleSpec]:
        """The draws of the steps after the one that feeds all of `pending`, where each of those feeds just what was
        drawn before it, and draws by nothing else: they may then run in one go. Empty where that is not so."""
        return []

    @abstractmethod
    def absorb_logprobs(self, row_logprobs: list[RowLogprobs]) -> None:
        """Takes what draws of this step asked to observe, before `absorb`."""

    @abstractmethod
    def absorb(self, samples: list[Sample]) -> None:
        """Takes the results of the rows whose draws were not None, after these rows left `pending`."""

    @property
    @abstractmethod
    def result(self) -> Any:
        """The answer, once `is_done`."""

    def tokens_before(self, row: int) -> TokensBefore | None:
        """The context of the draw at pending row `row`, where penalties need it."""
        options = self.sequence.options
        if not options.sampling.has_penalties:
            return None
        tokens = self.sequence.tokens + self.pending[: row + 1]
        return TokensBefore(tokens[: options.num_prompt_tokens], tokens[options.num_prompt_tokens :])

    @property
    def is_done(self) -> bool:
        return not self.pending

    @property
    def expects_peer_work(self) -> bool:
        """Whether the sequence's next job is likely to be with the other model server."""
        return True

    def count_step(self, duration_s: float) -> None:
        """Notes an engine step this job took part in."""
        self._computed_s += duration_s

    @property
    def queued_us(self) -> int:
        """Microseconds from arrival to the end that were not spent in engine steps."""
        return max(0, int((time.perf_counter() - self.arrived_s - self._computed_s) * 1e6))

    @property
    def computed_us(self) -> int:
        """Microseconds of the engine steps this job took part in."""
        return int(self._computed_s * 1e6)
