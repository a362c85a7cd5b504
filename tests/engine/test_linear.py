"""How many rows the linears run."""

from collections.abc import Callable

import pytest
import torch

from paceline.engine.linear import Bfloat16Linear, Int8Linear, Int8WeightLinear, Linear, PackedLinear, PlainLinear

MAX_ROWS = 2048


KINDS = [PlainLinear, PackedLinear, Bfloat16Linear, Int8Linear, Int8WeightLinear]


@pytest.mark.parametrize("kind", KINDS)
def test_padding_is_enough_and_stays_what_it_is(
    kind: Callable[[torch.Tensor, torch.Tensor | None], Linear],
) -> None:
    linear: Linear = kind(torch.randn(16, 16).bfloat16(), None)
    for num_rows in range(1, MAX_ROWS + 1):
        padded = linear.padded(num_rows)
        assert padded >= num_rows
        assert linear.padded(padded) == padded, "padding twice is padding once"


def test_a_packed_linear_meets_few_counts_and_pads_few_rows() -> None:
    linear = PackedLinear(torch.randn(16, 16), None)
    counts = {linear.padded(num_rows) for num_rows in range(1, 512 + 1)}
    assert len(counts) == 93
    assert all(linear.padded(num_rows) == num_rows for num_rows in range(4, 33))
    assert all(linear.padded(num_rows) <= num_rows * 17 / 16 for num_rows in range(4, MAX_ROWS + 1))
