"""Measuring forwards leaves the cache as it was."""

from typing import Any

import pytest

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.forward_times import measure_forward_times

NUM_BLOCKS, BLOCK_SIZE = 64, 16


class Runner:
    """Fails at the given step."""

    def __init__(self, failing: int) -> None:
        self.num_left = failing

    def step(self, shares: list[tuple[Any, int]]) -> None:
        self.num_left -= 1
        if self.num_left == 0:
            raise RuntimeError("the forward pass fails")
        for job, num_tokens in shares:
            job.sequence.append(job.pending[:num_tokens])


@pytest.mark.parametrize("failing", [1, 2, 7, 0])
def test_all_blocks_are_free_also_after_a_failed_forward(failing: int) -> None:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, lambda sources, destinations: None)
    before = pool.num_free
    if failing:
        with pytest.raises(RuntimeError, match="the forward pass fails"):
            measure_forward_times(Runner(failing), pool, 256)
    else:
        assert measure_forward_times(Runner(failing), pool, 256)
    assert pool.num_free == before
