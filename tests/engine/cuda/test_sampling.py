"""Draws in fixed shapes are those of tensor operations, whatever is in the rows beside them."""

import numpy as np
import pytest
import torch

from paceline.engine.cuda.sampling.encoding import Results, decode, encode, is_codable, without_uncodable
from paceline.engine.cuda.sampling.spec_table import MOST, Column, Found, SampleTable, SpecTable
from paceline.engine.cuda.sampling.token_selection import sample_all
from paceline.engine.sampling.logprobs import with_confidence
from paceline.engine.sampling.specs import (
    Argmax,
    ComplementSample,
    ConfidentSample,
    GumbelMax,
    Sample,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    Score,
    TruncatedSample,
)
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.sampling_params import SamplingParams
from tests.engine.cuda.device import DEVICE

GREEDY = SamplingParams()
TRANSFORMS = [
    {}, {"top_k": 50}, {"top_k": 1}, {"top_k": 100, "top_p": 0.8}, {"top_p": 0.9}, {"min_p": 0.05},
    {"top_k": 200, "top_p": 0.95, "min_p": 0.01}, {"top_k": 10**6, "top_p": 0.5}, {"top_k": 300}, {"top_p": 0.999},
    {"top_p": 0.0}, {"top_k": 100, "top_p": 0.0},
]  # fmt: skip


def sample_in_table(logits: torch.Tensor, specs: list[SampleSpec], num_rows: int | None = None) -> list[Sample]:
    """As the runner does. `num_rows`: with padding behind the draws."""
    num_rows = num_rows or len(specs)
    numbers, supports = np.zeros((num_rows, len(Column))), np.zeros((num_rows, MOST), np.int32)
    codable = without_uncodable(specs)
    encode(codable, logits.shape[1], numbers, supports)
    table = SpecTable(torch.from_numpy(numbers).to(DEVICE), torch.from_numpy(supports).to(DEVICE))
    padded = torch.zeros(num_rows, logits.shape[1], device=DEVICE)
    padded[: len(specs)] = logits
    # Nothing may be left from a step before.
    samples = SampleTable(
        torch.full((num_rows, len(Found)), float("nan"), dtype=torch.float64, device=DEVICE),
        torch.full((num_rows, MOST), -1, dtype=torch.int32, device=DEVICE),
        torch.full((num_rows, MOST), float("nan"), device=DEVICE),
    )
    sample_all(padded, table, samples)
    return decode(codable, Results(*(each.cpu().numpy() for each in (samples.numbers, samples.ids, samples.probs))))


def make_draws(logits: torch.Tensor, seed: int) -> list[SampleSpec]:
    """All kinds by all parameters, in turns."""
    specs: list[SampleSpec] = []
    likeliest = logits.argsort(dim=-1, descending=True).numpy()
    for row in range(len(logits)):
        sampling = SamplingParams(temperature=0.8, **TRANSFORMS[row // 4 % len(TRANSFORMS)])  # type: ignore[arg-type]
        number = uniform(make_key(seed, 0, row, Purpose.OUTSIDE))
        support = likeliest[row, : row % 12]
        specs.append(
            [
                Argmax(GREEDY, ()),
                GumbelMax(sampling, (), match_key(seed, row)),
                SampleTruncated(sampling, (), number, 64, 0.995),
                SampleComplement(sampling, (), support, number),
            ][row % 4]
        )
    return specs


def check(found: Sample, wanted: Sample) -> None:
    if isinstance(wanted, TruncatedSample):
        assert isinstance(found, TruncatedSample)
        assert (found.token, found.support.tolist()) == (wanted.token, wanted.support.tolist())
        np.testing.assert_allclose(found.probs, wanted.probs, rtol=1e-6)
    elif isinstance(wanted, ComplementSample):
        assert isinstance(found, ComplementSample)
        assert found.token == wanted.token or wanted.mass == 0
        assert found.mass == pytest.approx(wanted.mass, rel=1e-9, abs=1e-15)
        np.testing.assert_allclose(found.support_probs, wanted.support_probs, rtol=1e-6)
    else:
        assert found == wanted


# Fewer tokens than are looked at, one part of the vocabulary, several.
@pytest.mark.parametrize(
    ("vocab_size", "spread"),
    [
        (40, 3.0),
        pytest.param(2000, 1.5, marks=pytest.mark.campaign),
        pytest.param(2000, 8.0, marks=pytest.mark.campaign),
        pytest.param(20_000, 3.0, marks=pytest.mark.campaign),
    ],
)
def test_draws_are_those_of_tensor_operations(vocab_size: int, spread: float) -> None:
    logits = torch.randn(4 * len(TRANSFORMS), vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread
    specs = make_draws(logits, seed=vocab_size)
    found, wanted = sample_in_table(logits, specs), TorchSampler().sample(logits, specs)
    for one, other in zip(found, wanted, strict=True):
        if one is not None:
            check(one, other)
    # Only what MOST tokens do not decide is left to others.
    left = [specs[row].sampling for row, one in enumerate(found) if one is None]
    assert all(
        each.top_k == 300 or ((each.top_k > MOST or not each.top_k) and each.top_p < 1) or each.min_p for each in left
    )
    assert len(left) < len(specs) / 3
    assert vocab_size > MOST or not left


def test_of_equals_the_lower_id_is_kept_as_by_tensor_operations() -> None:
    """Few different logits, both signs of zero among them, so that equals are on both sides of every limit."""
    logits = torch.randint(-3, 4, (4 * len(TRANSFORMS), 300), generator=torch.Generator().manual_seed(1)) / 2
    logits[:, ::3][logits[:, ::3] == 0] = -0.0
    specs = make_draws(logits, seed=1)
    for found, wanted in zip(sample_in_table(logits, specs), TorchSampler().sample(logits, specs), strict=True):
        if found is not None:
            check(found, wanted)


def test_confidences_are_those_of_tensor_operations() -> None:
    logits = torch.randn(24, 3000, generator=torch.Generator().manual_seed(2)) * 4
    wants, warm = {"wants_confidence": True}, {"temperature": 0.8}
    specs: list[SampleSpec] = []
    for row in range(0, 24, 4):
        specs += [
            Argmax(GREEDY, (), **wants),
            Argmax(SamplingParams(**warm), (), **wants),
            GumbelMax(SamplingParams(**warm), (), match_key(2, row), **wants),
            GumbelMax(SamplingParams(**warm, top_k=50), (), match_key(2, row), **wants),
        ]
    found = sample_in_table(logits, specs)
    for one, other in zip(found, with_confidence(logits, specs, TorchSampler().sample(logits, specs)), strict=True):
        assert isinstance(one, ConfidentSample)
        assert isinstance(other, ConfidentSample)
        assert one.token == other.token
        assert one.confidence == pytest.approx(other.confidence, rel=1e-4)


def test_a_draw_does_not_depend_on_its_company() -> None:
    logits = torch.randn(12, 300, generator=torch.Generator().manual_seed(1)) * 3
    specs = make_draws(logits, seed=1)
    together = sample_in_table(logits, specs, num_rows=16)
    for row, spec in enumerate(specs):
        [alone] = sample_in_table(logits[row : row + 1], [spec])
        if alone is None:
            assert together[row] is None
        else:
            check(together[row], alone)


def test_no_extreme_number_draws_a_token_of_no_probability() -> None:
    logits = torch.randn(16, 300, generator=torch.Generator().manual_seed(2)) * 2
    support = np.concatenate((np.arange(20), np.arange(280, 300)))
    for number in (0.5 / 2**52, (2**52 - 0.5) / 2**52):
        specs: list[SampleSpec] = [SampleComplement(SamplingParams(temperature=1.0), (), support, number)] * len(logits)
        for outside in sample_in_table(logits, specs):
            assert isinstance(outside, ComplementSample)
            assert 20 <= outside.token < 280


def test_what_a_table_can_not_say_disturbs_nobody() -> None:
    """A support that does not fit into a row, for one; nor one of which a greedy request would make nothing."""
    logits = torch.randn(3, 400, generator=torch.Generator().manual_seed(3))
    sampling = SamplingParams(temperature=1.0)
    sampled = SampleTruncated(sampling, (), 0.5, 64, 0.995)
    specs: list[SampleSpec] = [
        SampleComplement(sampling, (), np.arange(MOST + 1), 0.5), sampled, SampleTruncated(GREEDY, (), 0.5, 64, 0.995)
    ]  # fmt: skip
    too_large, samples, greedy = sample_in_table(logits, specs)
    assert (too_large, greedy) == (None, None)
    check(samples, TorchSampler().sample(logits[1:2], [sampled])[0])


def test_what_a_table_can_not_say() -> None:
    sampling, penalized = SamplingParams(temperature=1.0), SamplingParams(temperature=1.0, logit_bias={3: 1.0})
    assert is_codable(Argmax(GREEDY, ()))
    assert not is_codable(Argmax(GREEDY, (2,)))
    assert not is_codable(GumbelMax(penalized, (), 1))
    assert not is_codable(GumbelMax(sampling, (), 1, num_logprobs=2))
    assert not is_codable(SampleTruncated(sampling, (), 0.5, MOST + 1, 1.0))
    assert not is_codable(Score(sampling, (), 3))
