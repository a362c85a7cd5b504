"""Draws in fixed shapes are those of tensor operations, whatever is in the rows beside them."""

import numpy as np
import pytest
import torch

from paceline.engine.cuda.sampling.encoding import Results, decode, encode, is_codable
from paceline.engine.cuda.sampling.table import MOST, Column, DrawnTable, DrawTable, Found
from paceline.engine.cuda.sampling.token_selection import draw_all
from paceline.engine.sampling.specs import (
    Draw,
    Drawn,
    FromOutside,
    FromSupport,
    GumbelMax,
    Likeliest,
    Outside,
    Score,
    Supported,
)
from paceline.engine.sampling.torch_sampler import TensorDraws
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.sampling import SamplingParams
from tests.cuda.device import DEVICE

GREEDY = SamplingParams()
TRANSFORMS = [
    {}, {"top_k": 50}, {"top_k": 1}, {"top_k": 100, "top_p": 0.8}, {"top_p": 0.9}, {"min_p": 0.05},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.01}, {"top_k": 10**6, "top_p": 0.5}, {"top_k": 300}, {"top_p": 0.999},
]  # fmt: skip


def draw_in_table(logits: torch.Tensor, draws: list[Draw], num_rows: int | None = None) -> list[Drawn]:
    """As the runner does. `num_rows`: with padding behind the draws."""
    num_rows = num_rows or len(draws)
    numbers, supports = np.zeros((num_rows, len(Column))), np.zeros((num_rows, MOST), np.int32)
    encode(draws, logits.shape[1], numbers, supports)
    table = DrawTable(torch.from_numpy(numbers).to(DEVICE), torch.from_numpy(supports).to(DEVICE))
    padded = torch.zeros(num_rows, logits.shape[1], device=DEVICE)
    padded[: len(draws)] = logits
    # Nothing may be left from a step before.
    drawn = DrawnTable(
        torch.full((num_rows, len(Found)), float("nan"), dtype=torch.float64, device=DEVICE),
        torch.full((num_rows, MOST), -1, dtype=torch.int32, device=DEVICE),
        torch.full((num_rows, MOST), float("nan"), device=DEVICE),
    )
    draw_all(padded, table, drawn)
    return decode(draws, Results(drawn.numbers.cpu().numpy(), drawn.ids.cpu().numpy(), drawn.probs.cpu().numpy()))


def make_draws(logits: torch.Tensor, seed: int) -> list[Draw]:
    """All kinds by all parameters, in turns."""
    draws: list[Draw] = []
    likeliest = logits.argsort(dim=-1, descending=True).numpy()
    for row in range(len(logits)):
        sampling = SamplingParams(temperature=0.8, **TRANSFORMS[row // 4 % len(TRANSFORMS)])  # type: ignore[arg-type]
        number = uniform(make_key(seed, 0, row, Purpose.OUTSIDE))
        support = likeliest[row, : row % 12]
        draws.append(
            [
                Likeliest(GREEDY, ()),
                GumbelMax(sampling, (), match_key(seed, row)),
                FromSupport(sampling, (), number, 64, 0.995),
                FromOutside(sampling, (), support, number),
            ][row % 4]
        )
    return draws


def check(found: Drawn, wanted: Drawn) -> None:
    if isinstance(wanted, Supported):
        assert isinstance(found, Supported)
        assert (found.token, found.support.tolist()) == (wanted.token, wanted.support.tolist())
        np.testing.assert_allclose(found.probs, wanted.probs, rtol=1e-6)
    elif isinstance(wanted, Outside):
        assert isinstance(found, Outside)
        assert found.token == wanted.token or wanted.mass == 0
        assert found.mass == pytest.approx(wanted.mass, rel=1e-9, abs=1e-15)
        np.testing.assert_allclose(found.support_probs, wanted.support_probs, rtol=1e-6)
    else:
        assert found == wanted


# Fewer tokens than are looked at, one part of the vocabulary, several.
@pytest.mark.parametrize(("vocab_size", "spread"), [(40, 3.0), (2000, 1.5), (2000, 8.0), (20_000, 3.0)])
def test_draws_are_those_of_tensor_operations(vocab_size: int, spread: float) -> None:
    logits = torch.randn(80, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread
    draws = make_draws(logits, seed=vocab_size)
    found, wanted = draw_in_table(logits, draws), TensorDraws().draw(logits, draws)
    for one, other in zip(found, wanted, strict=True):
        if one is not None:
            check(one, other)
    # Only what MOST tokens do not decide is left to others.
    left = [draws[row].sampling for row, one in enumerate(found) if one is None]
    assert all(
        each.top_k == 300 or ((each.top_k > MOST or not each.top_k) and each.top_p < 1) or each.min_p for each in left
    )
    assert len(left) < len(draws) / 3
    assert vocab_size > MOST or not left


def test_a_draw_does_not_depend_on_its_company() -> None:
    logits = torch.randn(40, 300, generator=torch.Generator().manual_seed(1)) * 3
    draws = make_draws(logits, seed=1)
    together = draw_in_table(logits, draws, num_rows=64)
    for row, draw in enumerate(draws):
        [alone] = draw_in_table(logits[row : row + 1], [draw])
        if alone is None:
            assert together[row] is None
        else:
            check(together[row], alone)


def test_no_extreme_number_draws_a_token_of_no_probability() -> None:
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(2)) * 2
    support = np.concatenate((np.arange(20), np.arange(280, 300)))
    for number in (0.5 / 2**52, (2**52 - 0.5) / 2**52):
        draws: list[Draw] = [FromOutside(SamplingParams(temperature=1.0), (), support, number)] * len(logits)
        for outside in draw_in_table(logits, draws):
            assert isinstance(outside, Outside)
            assert 20 <= outside.token < 280


def test_what_a_table_can_not_say_disturbs_nobody() -> None:
    """A support that does not fit into a row, for one; nor one of which a greedy request would make nothing."""
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(3))
    sampling = SamplingParams(temperature=1.0)
    sampled = FromSupport(sampling, (), 0.5, 64, 0.995)
    draws: list[Draw] = [
        FromOutside(sampling, (), np.arange(MOST + 1), 0.5), sampled, FromSupport(GREEDY, (), 0.5, 64, 0.995)
    ]  # fmt: skip
    too_large, drawn, greedy = draw_in_table(logits, draws)
    assert (too_large, greedy) == (None, None)
    check(drawn, TensorDraws().draw(logits[1:2], [sampled])[0])


def test_what_a_table_can_not_say() -> None:
    sampling, penalised = SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, logit_bias={3: 1.0})
    assert is_codable(Likeliest(GREEDY, ()))
    assert not is_codable(Likeliest(GREEDY, (2,)))
    assert not is_codable(GumbelMax(penalised, (), 1))
    assert not is_codable(GumbelMax(sampling, (), 1, num_logprobs=2))
    assert not is_codable(FromSupport(sampling, (), 0.5, MOST + 1, 1.0))
    assert not is_codable(Score(sampling, (), 3))
