"""A GPU's memory is shared out as told, and what does not fit is refused with the table."""

import pytest

from paceline.engine.cuda.budget import MIB, MemoryBudget
from paceline.errors import ConfigError

GIB = 1024 * MIB


def fit(fraction: float = 0.5, cache: int | None = None, weights: int = 6 * GIB) -> MemoryBudget:
    return MemoryBudget.fit(80 * GIB, fraction, weights, GIB, GIB // 2, 2 * MIB, cache)


def test_the_cache_takes_what_is_left() -> None:
    budget = fit()
    assert budget.num_blocks == (40 - 7.5 - 0.25) * 1024 / 2
    assert budget.used == 40 * GIB


def test_or_what_it_was_given() -> None:
    assert fit(cache=4 * GIB).num_blocks == 2048


def test_what_does_not_fit_is_refused_with_the_table() -> None:
    with pytest.raises(ConfigError, match=r"raise --gpu-memory-utilization; budget: weights 6,144 MiB, KV cache 0 MiB"):
        fit(fraction=0.05)
    with pytest.raises(ConfigError, match=r"raise --kv-cache-memory"):
        fit(cache=MIB)
    with pytest.raises(ConfigError, match=r"lower --kv-cache-memory .*40,960 \(0.5 of 81,920\)"):
        fit(cache=39 * GIB)
