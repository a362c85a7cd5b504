"""Memory for weights: what is kept is what was given, wherever it lies."""

import gc

import numpy as np
import pytest

from paceline.engine.cpu.kernels.memory import LINE_BYTES, REGION_BYTES, Arena


def test_arrays_are_copies_that_do_not_meet() -> None:
    arena, random = Arena(), np.random.default_rng(1)
    given = [random.integers(0, 255, (3, size), np.uint8) for size in (1, 63, 64, 65, 1000)]
    kept = [arena.keep(each) for each in given]
    for each, original in zip(kept, given, strict=True):
        np.testing.assert_array_equal(each, original)
        assert each.ctypes.data % LINE_BYTES == 0


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32, np.float32])
def test_layout_is_that_of_rows(dtype: type) -> None:
    given = np.arange(24).astype(dtype).reshape(2, 3, 4)
    kept = Arena().keep(given.transpose(0, 2, 1))
    assert kept.flags.c_contiguous
    assert kept.dtype == dtype
    np.testing.assert_array_equal(kept, given.transpose(0, 2, 1))


def test_what_is_larger_than_a_region_has_one_of_its_own() -> None:
    arena = Arena()
    large = arena.keep(np.ones(REGION_BYTES + 1, np.uint8))
    small = arena.keep(np.zeros(8, np.uint8))
    assert large.size == REGION_BYTES + 1
    assert large.all()
    assert not small.any()


def test_arrays_outlive_the_arena() -> None:
    arena = Arena()
    kept = arena.keep(np.full(1000, 7, np.uint8))
    del arena
    gc.collect()
    assert (kept == 7).all()
