"""Draws by the kernels are those that the formulas give, for every size, temperature and extreme."""

import numpy as np
import pytest
import torch

from paceline.engine.cpu.kernels.noise_sampling import PART
from paceline.engine.cpu.sampler import GumbelKernelSampler
from paceline.engine.sampling.specs import GumbelMax, SampleComplement
from paceline.noise import Purpose, gumbel, make_key, match_key, uniform
from paceline.sampling_params import SamplingParams

SIZES = [1, 7, PART, PART + 1, 5 * PART - 1, 49_152]
TEMPERATURES = [0.01, 0.7, 1.0, 3.0]


def make_logits(num_rows: int, vocab_size: int, spread: float, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("vocab_size", SIZES)
def test_gumbel_max_chooses_what_exact_noise_chooses(vocab_size: int, temperature: float) -> None:
    """Hundreds of races among many tokens: their winners are often close."""
    sampling = SamplingParams(temperature=temperature)
    for spread in (0.1, 2.0, 8.0):
        logits = make_logits(60, vocab_size, spread, seed=vocab_size)
        keys = [match_key(3, row) for row in range(len(logits))]
        chosen = GumbelKernelSampler().sample(logits, [GumbelMax(sampling, (), key) for key in keys])
        exact = [
            int(np.argmax(row / temperature + gumbel(key, vocab_size)))
            for row, key in zip(logits.numpy().astype(np.float64), keys, strict=True)
        ]
        assert chosen == exact


def test_a_race_that_is_close_is_decided_by_exact_noise() -> None:
    """Logits that cancel the noise but for 1e-4, less than approximate logarithms are off by."""
    vocab_size, sampling = 1000, SamplingParams(temperature=0.5)
    keys = [match_key(4, row) for row in range(40)]
    noise = np.stack([gumbel(key, vocab_size) for key in keys])
    close = np.random.default_rng(0).normal(0, 1e-4, noise.shape)
    logits = (0.5 * (close - noise)).astype(np.float32)
    chosen = GumbelKernelSampler().sample(torch.from_numpy(logits), [GumbelMax(sampling, (), key) for key in keys])
    assert chosen == (logits.astype(np.float64) / 0.5 + noise).argmax(axis=1).tolist()


def test_banned_tokens_never_win() -> None:
    logits = make_logits(50, 200, 0.1)
    logits[:, 3:] = -torch.inf
    specs = [GumbelMax(SamplingParams(temperature=5.0), (), match_key(1, row)) for row in range(50)]
    assert set(GumbelKernelSampler().sample(logits, specs)) == {0, 1, 2}


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("vocab_size", SIZES)
def test_outside_draws_invert_the_cumulative_sum(vocab_size: int, temperature: float) -> None:
    sampling, num_rows = SamplingParams(temperature=temperature), 40
    logits = make_logits(num_rows, vocab_size, 2.0, seed=vocab_size)
    likeliest = logits.argsort(dim=-1, descending=True).numpy()
    supports = [np.sort(likeliest[row, : min(row, vocab_size - 1)]) for row in range(num_rows)]
    numbers = [uniform(make_key(1, 0, row, Purpose.OUTSIDE)) for row in range(num_rows)]
    specs = [SampleComplement(sampling, (), *each) for each in zip(supports, numbers, strict=True)]
    found = GumbelKernelSampler().sample(logits, specs)
    exact = torch.softmax(logits.double() / temperature, dim=-1).numpy()
    for row, outside in enumerate(found):
        inside = exact[row, supports[row]]
        # An exponent of float32 has an error of its own size, times 2^-24: 5e-6 where a weight is e^-87.
        np.testing.assert_allclose(outside.support_probs, inside, rtol=1e-5, atol=1e-37)
        left = exact[row].copy()
        left[supports[row]] = 0
        assert outside.mass == pytest.approx(left.sum(), rel=1e-5, abs=1e-37)
        if outside.mass > 0:
            sums = left.cumsum() / left.sum()
            # The token's own stretch of the unit interval, as far as float32 weights place its ends.
            before = sums[outside.token - 1] if outside.token else 0.0
            assert before - 1e-5 <= numbers[row] <= sums[outside.token] + 1e-5
            assert left[outside.token] > 0


def test_rows_of_another_size_and_number_find_room() -> None:
    """The memory that the kernels work in is kept from one step to the next."""
    tempered, sampling = GumbelKernelSampler(), SamplingParams(temperature=1.0)
    for num_rows, vocab_size in ((2, 300), (5, 300), (1, 300), (3, 512)):
        logits = make_logits(num_rows, vocab_size, 2.0, seed=vocab_size)
        specs = [GumbelMax(sampling, (), match_key(1, row)) for row in range(num_rows)]
        assert tempered.sample(logits, specs) == GumbelKernelSampler().sample(logits, specs)
