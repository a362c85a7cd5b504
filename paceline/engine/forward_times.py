"""Measures how long forwards take, for the model card: the coordinator decides from it what a draft may cost."""

import time
from typing import Any

from paceline.engine.backend import StepRunner
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import Argmax, Sample, SampleSpec
from paceline.engine.scheduling.job import Job
from paceline.sampling import SamplingParams

# Numbers of tokens that are measured. In between a forward's time is nearly linear.
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
# No larger size is measured after a forward of at least FEWEST tokens that took this long.
LONG_S, FEWEST = 0.02, 32
# Each size's shortest time counts: whatever else runs makes a forward longer, never shorter.
REPEATS = 2


class _TimedJob(Job):
    """Feeds tokens and samples at each, as a verification does."""

    def specs(self, num_rows: int) -> list[SampleSpec | None]:
        return [Argmax(self.sequence.options.sampling, ())] * num_rows

    def absorb_logprobs(self, row_logprobs: list[RowLogprobs]) -> None:
        pass

    def absorb(self, samples: list[Sample]) -> None:
        pass

    @property
    def result(self) -> Any:
        return None


def measure_forward_times(runner: StepRunner, pool: BlockPool, max_tokens: int) -> list[tuple[int, float]]:
    """Returns (tokens, seconds) for each size up to `max_tokens`; seconds never fall from one size to the next.

    Call it on the device thread, between two steps. It leaves the pool as it was.
    """
    sequence = Sequence(SequenceOptions(SamplingParams(temperature=0, seed=0), 1, ()), pool)
    sizes = [size for size in SIZES if size <= max_tokens]
    sequence.reserve(sizes[-1])
    found = {}
    for size in sizes:
        found[size] = min(_measure(runner, sequence, size) for _ in range(REPEATS))
        if size >= FEWEST and found[size] > LONG_S:
            break
    sequence.truncate(0)
    # A smaller forward takes no longer than a larger one, and a disturbance only lengthens a time.
    return [(size, min(found[other] for other in found if other >= size)) for size in found]


def _measure(runner: StepRunner, sequence: Sequence, num_tokens: int) -> float:
    job = _TimedJob(sequence, [0] * num_tokens)
    started_s = time.perf_counter()
    runner.step([(job, num_tokens)])
    seconds = time.perf_counter() - started_s
    sequence.rollback(0)
    return seconds
