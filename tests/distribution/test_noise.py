"""Noise is a pure function of its key, the same in numpy and torch, and accurate in the tail."""

import numpy as np
import pytest
import torch
from scipy import stats

from paceline import noise
from paceline.engine.sampling import torch_sampler as torch_noise

CPU = torch.device("cpu")
GOLDEN_KEY = 16937688763604004336
GOLDEN_IDS = [55289759, 3504325576, 3113371511]
GOLDEN_UNIFORM = 0.473251739461482
KEYS = [0, 1, 2**32, 2**63 + 12345, 2**64 - 1, *(noise.match_key(seed, seed * 7) for seed in range(40))]


def test_numpy_and_torch_integers_are_equal() -> None:
    low, high = (torch.tensor([[key >> shift & 0xFFFFFFFF] for key in KEYS]) for shift in (0, 32))
    ours = torch_noise.hash_ids(torch.arange(5000).unsqueeze(0), low, high).numpy()
    theirs = np.stack([noise.hash_ids(key, 5000) for key in KEYS])
    assert np.array_equal(ours, theirs)


def test_gumbel_agrees_to_an_ulp_or_so() -> None:
    ours = torch_noise.gumbel(KEYS, 5000, CPU).numpy()
    theirs = np.stack([noise.gumbel(key, 5000) for key in KEYS])
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-12)


def test_known_values_never_change() -> None:
    # A seed must repeat its text in every later version: these numbers are part of the contract.
    key = noise.make_key(7, 10, 12, noise.Purpose.ACCEPT)
    assert key == GOLDEN_KEY
    assert noise.hash_ids(key, 3).tolist() == GOLDEN_IDS
    assert noise.uniform(key) == GOLDEN_UNIFORM


def test_uniforms_are_inside_the_open_interval_and_uniform() -> None:
    values = np.array([noise.uniform(noise.make_key(3, 0, position, noise.Purpose.DRAFT)) for position in range(20000)])
    assert values.min() > 0
    assert values.max() < 1
    # Kolmogorov-Smirnov: the chance of exceeding 1.95/sqrt(n) is 1e-3, of 2.4/sqrt(n) 2e-5.
    sorted_values = np.sort(values)
    distance = np.abs(sorted_values - (np.arange(20000) + 0.5) / 20000).max()
    assert distance < 2.4 / np.sqrt(20000)


@pytest.mark.parametrize("changed", ["seed", "round_start", "position", "purpose"])
def test_every_part_of_the_key_gives_independent_noise(changed: str) -> None:
    base = {"seed": 5, "round_start": 9, "position": 11, "purpose": noise.Purpose.DRAFT}
    other = base | {changed: noise.Purpose.BONUS if changed == "purpose" else base[changed] + 1}
    first = noise.hash_ids(noise.make_key(**base), 50000) / 2**32
    second = noise.hash_ids(noise.make_key(**other), 50000) / 2**32
    # The correlation of 50,000 independent pairs is below 5 / sqrt(50,000) but for one time in a million.
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / np.sqrt(50000)


def test_gumbel_max_follows_a_distribution_with_a_long_tail() -> None:
    # 128,256 ids: 256 likely ones hold 0.9, the rest share 0.1. Coarse uniforms spoil exactly this tail.
    vocab_size, specs = 128256, 1500
    log_p = np.log(np.concatenate((np.full(256, 0.9 / 256), np.full(vocab_size - 256, 0.1 / (vocab_size - 256)))))
    tail = sum(int(np.argmax(log_p + noise.gumbel(noise.match_key(1, i), vocab_size)) >= 256) for i in range(specs))
    # Five standard deviations of a binomial(1500, 0.1).
    assert abs(tail - 0.1 * specs) < 5 * np.sqrt(specs * 0.09)


def test_the_winner_among_128256_ids_is_one_and_as_large_as_due() -> None:
    # With 24-bit uniforms two ids tie for it in 0.76 % of all draws, and the lower id wins them.
    vocab_size = 128256
    winners = []
    for position in range(1000):
        second, first = np.partition(noise.gumbel(noise.match_key(11, position), vocab_size), -2)[-2:]
        assert first > second
        winners.append(first)
    # The largest of n Gumbel numbers is a Gumbel number, moved by ln n. A right one fails once in a million.
    assert stats.kstest(winners, stats.gumbel_r(loc=np.log(vocab_size)).cdf).pvalue > 1e-6


def test_first_sample_keeps_the_seed_and_later_ones_get_their_own() -> None:
    assert noise.derive_seed(42, 0) == 42
    assert len({noise.derive_seed(42, sample) for sample in range(100)}) == 100
