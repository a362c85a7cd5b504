"""Measures how long forwards take, for the model info: the coordinator decides from it what a draft may cost."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.engine.backend import StepRunner
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import open_sequence
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import Argmax, Sample, SampleSpec
from paceline.engine.scheduling.job import Job
from paceline.sampling_params import SamplingParams

# Numbers of tokens that are measured. In between a forward pass's time is nearly linear; kernels take 8 or 16 rows at a time, and
# one more costs another pass.
SIZES = (1, 2, 4, 8, 9, 16, 17, 32, 64, 128, 256, 512)
# No larger size is measured after a forward pass of at least FEWEST tokens that took this long.
LONG_S, FEWEST = 0.02, 32
# Most tokens of one sequence: a chunk of a prompt takes other kernels than rounds do.
EACH = 64
# Each size's shortest time counts: whatever else runs makes a forward pass longer, never shorter.
REPEATS = 2


# Returns (rows, seconds) of a draft head's forward passes, given a free block.
MeasureHead = Callable[[int], list[tuple[int, float]]]


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


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """(tokens, seconds) of forward passes, by increasing numbers of tokens."""

    of_model: list[tuple[int, float]]
    # Of its draft head; empty without one.
    of_head: list[tuple[int, float]]


def measure_times(
    runner: StepRunner, pool: BlockPool, max_tokens: int, measure_head: MeasureHead | None
) -> MeasuredTimes:
    """Call it on the device thread, between two steps. It leaves the pool as it was, also if it fails."""
    of_model, of_head = measure_forward_times(runner, pool, max_tokens), list[tuple[int, float]]()
    if measure_head is not None:
        [block] = blocks = pool.allocate(1)
        try:
            of_head = measure_head(block)
        finally:
            pool.release(blocks)
    return MeasuredTimes(of_model, of_head)


def measure_forward_times(runner: StepRunner, pool: BlockPool, max_tokens: int) -> list[tuple[int, float]]:
    """Returns (tokens, seconds) for each size up to `max_tokens`; seconds never fall from one size to the next.

    Call it on the device thread, between two steps. It leaves the pool as it was, also if it fails.
    """
    num_sequences = pool.num_free // pool.blocks_for(EACH)
    if pool.states.num_slots:
        num_sequences = min(num_sequences, pool.states.num_free)
    sizes = [size for size in SIZES if size <= max_tokens and size <= max(EACH, EACH * num_sequences)]
    options = SequenceOptions(SamplingParams(temperature=0, seed=0), 1, ())
    sequences = [open_sequence(options, pool) for _ in range(-(-sizes[-1] // EACH))]
    found = {}
    try:
        for sequence in sequences:
            sequence.reserve(min(sizes[-1], EACH))
        for size in sizes:
            found[size] = min(_measure(runner, sequences, size) for _ in range(REPEATS))
            if size >= FEWEST and found[size] > LONG_S:
                break
    finally:
        for sequence in sequences:
            sequence.truncate(0)
    # A smaller forward takes no longer than a larger one, and a disturbance only lengthens a time.
    return [(size, min(found[other] for other in found if other >= size)) for size in found]


def _measure(runner: StepRunner, sequences: list[Sequence], num_tokens: int) -> float:
    each = min(num_tokens, EACH)
    jobs = [_TimedJob(sequence, [0] * each) for sequence in sequences[: num_tokens // each]]
    started_s = time.perf_counter()
    runner.step([(job, each) for job in jobs])
    seconds = time.perf_counter() - started_s
    for job in jobs:
        job.sequence.rollback(0)
    return seconds
