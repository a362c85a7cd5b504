"""Rows are looked at some at a time: each has the bits that it has alone, and memory does not grow with their number."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.engine.sampling import logprobs
from paceline.engine.sampling.logprobs import ROWS_AT_ONCE, RowLogprobs, compute_logprobs
from paceline.engine.sampling.specs import Argmax, Sample, SampleSpec, Score
from paceline.sampling_params import SamplingParams

VOCAB_SIZE = 5000
NUM_ROWS = 2 * ROWS_AT_ONCE + 3


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


def rows_of_all_kinds() -> tuple[torch.Tensor, list[SampleSpec], list[Sample]]:
    logits = torch.randn(NUM_ROWS, VOCAB_SIZE, generator=torch.Generator().manual_seed(2)) * 4
    specs: list[SampleSpec] = []
    for row in range(NUM_ROWS):
        asked = {"num_logprobs": row % 4} if row % 3 else {}
        specs.append(Argmax(SamplingParams(), (), wants_entropy=row % 2 == 0, **asked))
    return logits, specs, list(range(NUM_ROWS))


def same(one: RowLogprobs | None, other: RowLogprobs | None) -> bool:
    if one is None or other is None:
        return one is other
    pairs = ((one.chosen, other.chosen), (one.top_ids, other.top_ids), (one.top, other.top))
    return one.entropy == other.entropy and all(np.array_equal(ours, theirs) for ours, theirs in pairs)


@pytest.mark.usefixtures("threads")
def test_a_row_has_the_bits_that_it_has_alone_or_beside_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    logits, specs, samples = rows_of_all_kinds()
    seen = compute_logprobs(logits, specs, samples)
    assert 0 < sum(row is None for row in seen) < NUM_ROWS
    for row in range(NUM_ROWS):
        [alone] = compute_logprobs(logits[row : row + 1], specs[row : row + 1], samples[row : row + 1])
        assert same(seen[row], alone)
    monkeypatch.setattr(logprobs, "ROWS_AT_ONCE", NUM_ROWS)
    together = compute_logprobs(logits, specs, samples)
    assert all(same(one, other) for one, other in zip(seen, together, strict=True))


class Largest(TorchDispatchMode):
    """The most rows that torch makes of logits at a time."""

    rows = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor) and made.shape[1:] == (VOCAB_SIZE,):
            self.rows = max(self.rows, len(made))
        return made


def test_no_more_rows_than_some_are_copied_at_a_time() -> None:
    logits = torch.randn(NUM_ROWS, VOCAB_SIZE)
    specs: list[SampleSpec] = [Score(SamplingParams(), (), row, num_logprobs=2) for row in range(NUM_ROWS)]
    with Largest() as largest:
        compute_logprobs(logits, specs, [None] * NUM_ROWS)
    assert largest.rows == ROWS_AT_ONCE


@pytest.mark.parametrize("num_logprobs", [0, 1, 3, 5, 20])
def test_of_equals_the_lower_id_is_among_the_likeliest(num_logprobs: int) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0, 1.0, 2.0, 0.0, -0.0] + [-1.0] * 500])
    [row] = compute_logprobs(logits, [Argmax(SamplingParams(), (), num_logprobs=num_logprobs)], [1])
    assert row is not None
    assert row.top_ids.tolist() == [1, 2, 4, 0, 3, 5, 6, *range(7, 20)][:num_logprobs]
