"""Draws from the likeliest few are those that tensor operations over the whole vocabulary make."""

import numpy as np
import pytest
import torch

from paceline.engine.cpu.sampler import MOST, TopKKernelSampler
from paceline.engine.sampling.specs import (
    ComplementSample,
    GumbelMax,
    SampleComplement,
    SampleTruncated,
    TruncatedSample,
)
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.sampling_params import SamplingParams

NUM_ROWS = 24
TRANSFORMS = {
    "top-k": {"top_k": 50},
    "top-k 1": {"top_k": 1},
    "top-k and top-p": {"top_k": 100, "top_p": 0.8},
    "top-p": {"top_p": 0.9},
    "top-p 0": {"top_p": 0.0},
    "min-p": {"min_p": 0.05},
    "all": {"top_k": 200, "top_p": 0.95, "min_p": 0.01},
    "top-k of all, top-p": {"top_k": 10**6, "top_p": 0.5},
}
# Of logits: from one token that has nearly all to hundreds that share.
SPREADS = [1.5, 3.0, 8.0]


def make_logits(vocab_size: int, spread: float) -> torch.Tensor:
    return torch.randn(NUM_ROWS, vocab_size, generator=torch.Generator().manual_seed(vocab_size)) * spread


def numbers(purpose: Purpose) -> list[float]:
    return [uniform(make_key(5, 0, row, purpose)) for row in range(NUM_ROWS)]


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("vocab_size", [5, 300, 16_384])
def test_few_tokens_decide_as_all_do(vocab_size: int, spread: float, name: str) -> None:
    logits, sampling = make_logits(vocab_size, spread), SamplingParams(temperature=0.8, **TRANSFORMS[name])  # type: ignore[arg-type]
    gumbels = [GumbelMax(sampling, (), match_key(1, row)) for row in range(NUM_ROWS)]
    compare(logits, gumbels)
    compare(logits, [SampleTruncated(sampling, (), number, 64, 0.995) for number in numbers(Purpose.DRAFT)])
    likeliest = logits.argsort(dim=-1, descending=True).numpy()
    supports = [likeliest[row, : row % min(vocab_size, 12)] for row in range(NUM_ROWS)]
    compare(
        logits,
        [SampleComplement(sampling, (), *each) for each in zip(supports, numbers(Purpose.OUTSIDE), strict=True)],
    )


@pytest.mark.parametrize("spread", SPREADS)
@pytest.mark.parametrize("vocab_size", [5, 300, 16_384])
def test_supports_of_whole_distributions_are_the_same(vocab_size: int, spread: float) -> None:
    logits, sampling = make_logits(vocab_size, spread), SamplingParams(temperature=1.0)
    for max_size, min_mass in ((256, 0.995), (5, 0.995), (256, 0.3), (256, 0.9999)):
        compare(
            logits, [SampleTruncated(sampling, (), number, max_size, min_mass) for number in numbers(Purpose.DRAFT)]
        )


def compare(logits: torch.Tensor, specs: list[GumbelMax] | list[SampleTruncated] | list[SampleComplement]) -> None:
    exact = TorchSampler().sample(logits, specs)
    for index, (found, wanted) in enumerate(zip(TopKKernelSampler().sample(logits, specs), exact, strict=True)):
        if found is None:
            assert specs[0].sampling.top_k == 0 or specs[0].sampling.top_k > MOST
        elif isinstance(found, ComplementSample):
            assert isinstance(wanted, ComplementSample)
            np.testing.assert_allclose(found.support_probs, wanted.support_probs, rtol=1e-5)
            assert found.mass == pytest.approx(wanted.mass, rel=1e-5)
            assert found.token == wanted.token or wanted.mass == 0, index
        elif isinstance(found, TruncatedSample):
            assert isinstance(wanted, TruncatedSample)
            # In any order of equals.
            assert (found.token, sorted(found.support)) == (wanted.token, sorted(wanted.support))
            np.testing.assert_allclose(found.probs, wanted.probs, rtol=1e-5)
        else:
            assert found == wanted


def test_who_needs_more_tokens_is_left_to_others() -> None:
    """Flat rows keep thousands of tokens at top-p 0.9, steep ones a few."""
    logits = torch.cat([make_logits(49_152, 0.5), make_logits(49_152, 8.0)])
    specs = [GumbelMax(SamplingParams(temperature=1.0, top_p=0.9), (), match_key(1, row)) for row in range(len(logits))]
    found = TopKKernelSampler().sample(logits, specs)
    assert found[:NUM_ROWS] == [None] * NUM_ROWS
    assert None not in found[NUM_ROWS:]


# Few different logits, so that equals are on both sides of every limit.
def make_equals(vocab_size: int) -> torch.Tensor:
    steps = torch.randint(-3, 4, (NUM_ROWS, vocab_size), generator=torch.Generator().manual_seed(vocab_size))
    logits = steps / 2
    # Some banned, and both signs of zero.
    logits[:, ::7] = -torch.inf
    logits[:, ::3][logits[:, ::3] == 0] = -0.0
    return logits


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("vocab_size", [5, 300, 16_384])
def test_of_equals_the_lower_id_is_kept_by_all_backends(vocab_size: int, name: str) -> None:
    logits, sampling = make_equals(vocab_size), SamplingParams(temperature=0.8, **TRANSFORMS[name])  # type: ignore[arg-type]
    compare(logits, [GumbelMax(sampling, (), match_key(1, row)) for row in range(NUM_ROWS)])
    specs = [SampleTruncated(sampling, (), number, 64, 0.995) for number in numbers(Purpose.DRAFT)]
    compare(logits, specs)
    for found, wanted in zip(
        TopKKernelSampler().sample(logits, specs), TorchSampler().sample(logits, specs), strict=True
    ):
        if isinstance(found, TruncatedSample):
            assert isinstance(wanted, TruncatedSample)
            assert found.support.tolist() == wanted.support.tolist()


def test_of_equals_the_first_come_first() -> None:
    """Also where more are equal than are looked at."""
    logits = torch.zeros(1, 1000)
    logits[0, 700] = 1.0
    [found] = TopKKernelSampler().sample(logits, [SampleTruncated(SamplingParams(temperature=1.0), (), 0.5, 4, 1.0)])
    assert isinstance(found, TruncatedSample)
    assert found.support.tolist() == [700, 0, 1, 2]


def test_banned_tokens_are_in_no_support() -> None:
    logits = torch.zeros(1, 1000)
    logits[0, 3:] = -torch.inf
    [found] = TopKKernelSampler().sample(logits, [SampleTruncated(SamplingParams(temperature=1.0), (), 0.5, 64, 1.0)])
    assert isinstance(found, TruncatedSample)
    assert found.support.tolist() == [0, 1, 2]
