"""What the sampler draws follows the distribution that was asked for, row by row.

Seeds are fixed; thresholds are such that one seed in a million would fail a right sampler.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.specs import (
    Argmax,
    ComplementSample,
    GumbelMax,
    Sample,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    TruncatedSample,
)
from paceline.engine.sampling.torch_sampler import CANDIDATES, largest, probabilities
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.sampling_params import SamplingParams

VOCAB_SIZE = 49152
FALSE_ALARM = 1e-6
PLAIN = SamplingParams(temperature=1.0)
GREEDY = SamplingParams()
NOTHING: NDArray[np.int64] = np.empty(0, dtype=np.int64)
# The largest and smallest numbers that `uniform` makes: where rounding can push a draw off its end.
EXTREMES = [0.5 / 2**52, (2**52 - 0.5) / 2**52]


def random_logits(rows: int, vocab_size: int, seed: int, spread: float = 2.0) -> torch.Tensor:
    """[rows, vocab_size]; with spread 2 it takes thousands of ids to hold half of the mass at 49,152."""
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(seed)) * spread


def uniforms(count: int) -> list[float]:
    return [uniform(make_key(1, 0, position, Purpose.DRAFT)) for position in range(count)]


def sample(logits: torch.Tensor, specs: list[SampleSpec]) -> list[Sample]:
    return CpuSampler().sample(logits.clone(), specs)


def sample_row(logits: torch.Tensor, specs: list[SampleSpec], batch: int = 64) -> list[Sample]:
    """Many draws from one row of logits: [vocab_size]."""
    parts = [specs[start : start + batch] for start in range(0, len(specs), batch)]
    return [samples for part in parts for samples in sample(logits.expand(len(part), -1), part)]


def softmax(logits: torch.Tensor, temperature: float = 1.0) -> NDArray[np.float64]:
    scaled = logits.numpy().astype(np.float64) / temperature
    weights = np.exp(scaled - scaled.max())
    return weights / weights.sum()


def reference(logits: torch.Tensor, params: SamplingParams) -> NDArray[np.float64]:
    """Temperature, top-k, top-p on what that leaves, min-p, as plainly as it can be said."""
    probs = softmax(logits, params.temperature)
    order = np.argsort(-probs)
    ranked = probs[order]
    if params.top_k:
        ranked[params.top_k :] = 0
    ranked /= ranked.sum()
    if params.top_p < 1:
        # A token stays while those before it have not reached top_p.
        before = np.cumsum(ranked) - ranked
        ranked[1:][before[1:] >= params.top_p] = 0
    ranked[ranked < params.min_p * ranked[0]] = 0
    result = np.zeros_like(probs)
    result[order] = ranked / ranked.sum()
    return result


TRANSFORMS = {
    "none": {},
    "temperature": {"temperature": 0.75},
    "top-k": {"top_k": 50},
    "top-k beyond the first candidates": {"top_k": CANDIDATES[0] + 50},
    "top-k beyond all candidates": {"top_k": CANDIDATES[-1] + 500},
    "top-k beyond the vocabulary": {"top_k": 10**6},
    "top-p": {"top_p": 0.3},
    "top-p beyond the candidates": {"top_p": 0.97},
    "top-p of almost nothing": {"top_p": 1e-6},
    "top-p of nothing": {"top_p": 0.0},
    "top-k and top-p of nothing": {"top_k": 40, "top_p": 0},
    "min-p": {"min_p": 0.2},
    "min-p beyond the candidates": {"min_p": 0.001},
    "top-k and top-p": {"top_k": 40, "top_p": 0.8},
    "top-k beyond the first candidates and top-p within": {"top_k": 3000, "top_p": 0.2},
    "top-k beyond all candidates and top-p within": {"top_k": 6000, "top_p": 0.2},
    "top-p and min-p": {"top_p": 0.9, "min_p": 0.05},
    "all": {"temperature": 1.25, "top_k": 2000, "top_p": 0.95, "min_p": 0.01},
}


@pytest.mark.parametrize("vocab_size", [32, 2000, VOCAB_SIZE])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_give_the_reference_distribution(name: str, vocab_size: int) -> None:
    params = replace(PLAIN, **TRANSFORMS[name])
    # From peaked to nearly flat: the last need the sort of the whole row for most transforms.
    logits = torch.cat([random_logits(2, vocab_size, 1, spread) for spread in (6.0, 2.0, 0.5)])
    ours = probabilities(logits.clone(), [params] * len(logits)).numpy()
    for row, expected in zip(ours, (reference(line, params) for line in logits), strict=True):
        assert np.array_equal(row > 0, expected > 0), "other tokens are kept"
        np.testing.assert_allclose(row, expected, rtol=1e-9, atol=0)


def check_frequencies(tokens: list[int], probs: NDArray[np.float64]) -> None:
    """Chi-square over classes that each expect at least 10 draws."""
    order = np.argsort(-probs)
    edges, mass = [0], 0.0
    for rank, prob in enumerate(probs[order]):
        mass += prob
        if mass * len(tokens) >= 10:
            edges.append(rank + 1)
            mass = 0.0
    edges[-1] = len(probs)
    observed, _ = np.histogram(order.argsort()[tokens], bins=edges)
    expected = np.add.reduceat(probs[order], edges[:-1]) * len(tokens)
    assert len(observed) > 5
    assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > FALSE_ALARM


def draws_of(kind: str, count: int, params: SamplingParams) -> list[SampleSpec]:
    if kind == "gumbel":
        return [GumbelMax(params, (), match_key(1, position)) for position in range(count)]
    if kind == "support":
        return [SampleTruncated(params, (), number, 4096, 1.0) for number in uniforms(count)]
    return [SampleComplement(params, (), NOTHING, number) for number in uniforms(count)]


def token_of(samples: Sample) -> int:
    return samples if isinstance(samples, int) else samples.token


@pytest.mark.parametrize("kind", ["gumbel", "support", "outside"])
@pytest.mark.parametrize("params", [PLAIN, replace(PLAIN, temperature=0.5, top_p=0.9)], ids=["plain", "top-p"])
def test_draws_follow_the_distribution(kind: str, params: SamplingParams) -> None:
    logits = random_logits(1, 60, 3, spread=1.0)[0]
    samples = sample_row(logits, draws_of(kind, 20000, params), batch=5000)
    check_frequencies([token_of(one) for one in samples], reference(logits, params))


@pytest.mark.parametrize("kind", ["gumbel", "outside"])
def test_the_tail_of_a_large_vocabulary_is_drawn_as_often_as_due(kind: str) -> None:
    logits, count = random_logits(1, VOCAB_SIZE, 4, spread=1.5)[0], 2000
    probs = softmax(logits)
    tail = np.argsort(-probs)[1000:]
    mass = probs[tail].sum()
    assert 0.4 < mass < 0.9, "a tail worth drawing from"
    tokens = [token_of(one) for one in sample_row(logits, draws_of(kind, count, PLAIN))]
    drawn_from_tail = int(np.isin(tokens, tail).sum())
    assert stats.binomtest(drawn_from_tail, count, mass).pvalue > FALSE_ALARM


def test_a_supports_distribution_is_exactly_what_was_sampled_from() -> None:
    """Rounded to float32 before the draw, not after: so the line between two tokens lies where what is sent says."""
    logits = random_logits(1, VOCAB_SIZE, 5, spread=3.0)[0]
    (sent,) = sample_row(logits, [SampleTruncated(PLAIN, (), 0.5, 256, 0.995)])
    assert isinstance(sent, TruncatedSample)
    assert sent.probs.dtype == np.float32
    assert abs(sent.probs.sum(dtype=np.float64) - 1) < 1e-5
    lines = np.cumsum(sent.probs.astype(np.float64))
    lines /= lines[-1]
    for shift, behind in ((-1e-12, 0), (1e-12, 1)):
        specs: list[SampleSpec] = [SampleTruncated(PLAIN, (), line + shift, 256, 0.995) for line in lines[:-1]]
        tokens = [token_of(samples) for samples in sample_row(logits, specs)]
        assert tokens == sent.support[behind : len(tokens) + behind].tolist()


@pytest.mark.parametrize(("max_size", "min_mass"), [(7, 1.0), (256, 0.5), (256, 0.995), (1, 0.1), (4096, 1.0)])
def test_a_support_is_the_fewest_likeliest_tokens_that_hold_the_mass(max_size: int, min_mass: float) -> None:
    logits = random_logits(1, 2000, 6)[0]
    (samples,) = sample_row(logits, [SampleTruncated(PLAIN, (), 0.3, max_size, min_mass)])
    assert isinstance(samples, TruncatedSample)
    probs = softmax(logits)
    order = np.argsort(-probs)
    reached = int(np.searchsorted(np.cumsum(probs[order]), min_mass)) + 1
    size = min(reached, max_size, len(probs))
    assert samples.support.tolist() == order[:size].tolist()
    np.testing.assert_allclose(samples.probs, probs[order[:size]] / probs[order[:size]].sum(), rtol=1e-6)


OUTSIDES = {
    "likeliest few": (np.arange(5), ()),
    "with the last id": (np.array([59, 3, 17]), ()),
    "with bans": (np.array([4, 8]), (0, 1, 59)),
    "all but one": (np.delete(np.arange(60), 31), ()),
    "all but one, and the end banned": (np.delete(np.arange(60), [31, 58, 59]), (58, 59)),
}


@pytest.mark.parametrize("name", OUTSIDES)
def test_outside_draws_leave_out_the_support_and_the_banned(name: str) -> None:
    support, banned = OUTSIDES[name]
    logits = random_logits(1, 60, 7, spread=1.0)[0]
    allowed = logits.clone()
    allowed[list(banned)] = -torch.inf
    probs = softmax(allowed)
    complement = probs.copy()
    complement[support] = 0
    numbers = [*uniforms(3000), *EXTREMES]
    samples = sample_row(logits, [SampleComplement(PLAIN, banned, support, number) for number in numbers], batch=1000)
    for outside in samples:
        assert isinstance(outside, ComplementSample)
        assert complement[outside.token] > 0
        # Weights are float32.
        assert outside.mass == pytest.approx(complement.sum(), rel=1e-6)
        np.testing.assert_allclose(outside.support_probs, probs[support], rtol=1e-6)
    if np.count_nonzero(complement) > 5:
        check_frequencies([outside.token for outside in samples[:3000]], complement / complement.sum())


def test_no_extreme_number_draws_a_token_of_no_probability() -> None:
    """Whatever the rounding of the row's sum: many sums, and ids of no probability at both ends."""
    logits = random_logits(400, 300, 8)
    support = np.concatenate((np.arange(20), np.arange(280, 300)))
    for number in EXTREMES:
        for outside in sample(logits, [SampleComplement(PLAIN, (), support, number)] * len(logits)):
            assert 20 <= outside.token < 280


@pytest.mark.parametrize("top_p", [1.0, 0.9])
@pytest.mark.parametrize("temperature", [1e-300, 1e-39, 1e-5])
def test_next_to_no_temperature_is_the_likeliest_token(temperature: float, top_p: float) -> None:
    logits = random_logits(20, 3000, 12)
    params = SamplingParams(temperature=temperature, top_p=top_p)
    likeliest = logits.argmax(dim=-1).tolist()
    for kind in ("gumbel", "support", "outside"):
        samples = sample(logits, draws_of(kind, len(logits), params))
        assert [token_of(each) for each in samples] == likeliest


def test_an_empty_complement_has_no_mass_at_all() -> None:
    """Not a rounding error's worth: it would let a token out that can't be."""
    logits = random_logits(1, 500, 9)[0]
    likeliest = logits.argsort(descending=True)[:3].numpy()
    cases: list[SampleSpec] = [
        SampleComplement(PLAIN, (), np.arange(500), 0.5),
        SampleComplement(replace(PLAIN, top_k=3), (), likeliest, 0.5),
        SampleComplement(PLAIN, tuple(range(10, 500)), np.arange(10), 0.5),
        SampleComplement(GREEDY, (), likeliest[:1], 0.5),
    ]
    assert [outside.mass for outside in sample_row(logits, cases)] == [0, 0, 0, 0]


def test_greedy_is_one_hot_at_the_likeliest_token_that_is_not_banned() -> None:
    logits = random_logits(1, 500, 10)[0]
    first, second = logits.argsort(descending=True)[:2].tolist()
    likeliest = [Argmax(GREEDY, ()), Argmax(GREEDY, (first,)), GumbelMax(GREEDY, (), 77)]
    assert sample_row(logits, likeliest) == [first, second, first]
    asked: list[SampleSpec] = [
        SampleComplement(GREEDY, (), np.array([second]), 0.9),
        SampleTruncated(GREEDY, (), 0.9, 256, 0.995),
    ]
    outside, supported = sample_row(logits, asked)
    assert (outside.token, outside.mass, outside.support_probs.tolist()) == (first, 1.0, [0.0])
    assert (supported.support.tolist(), supported.probs.tolist()) == ([first], [1.0])


def contents(samples: Sample) -> tuple[object, ...]:
    if isinstance(samples, TruncatedSample):
        return samples.token, samples.support.tolist(), samples.probs.tolist()
    if isinstance(samples, ComplementSample):
        return samples.token, samples.mass, samples.support_probs.tolist()
    return (samples,)


def test_a_draw_does_not_depend_on_the_draws_beside_it() -> None:
    """Also where logits tie, as they do at bfloat16, and where one row alone is summed by several threads."""
    logits = random_logits(40, VOCAB_SIZE, 11).bfloat16().float()
    kinds = list(TRANSFORMS.values())
    specs: list[SampleSpec] = []
    for row in range(len(logits)):
        params = GREEDY if row % 7 == 0 else replace(PLAIN, **kinds[row % len(kinds)])
        common, number = (params, tuple(range(row % 3))), uniforms(40)[row]
        support = logits[row].argsort(descending=True)[: row % 5].numpy()
        supported, outside = SampleTruncated(*common, number, 256, 0.995), SampleComplement(*common, support, number)
        specs.append([Argmax(*common), GumbelMax(*common, match_key(2, row)), supported, outside][row % 4])
    together = [contents(one) for one in sample(logits, specs)]
    alone = [contents(sample(logits[row : row + 1], [spec])[0]) for row, spec in enumerate(specs)]
    assert together == alone


def pack(is_allowed: NDArray[np.bool_]) -> NDArray[np.uint32]:
    return np.packbits(is_allowed, bitorder="little").view(np.uint32)


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_mask_comes_before_every_transform(name: str) -> None:
    """As if the tokens left out had no logits. Each row has its own mask, also where the others have none."""
    params = replace(PLAIN, **TRANSFORMS[name])
    logits = random_logits(3, 2048, 5)
    allowed = np.random.default_rng(6).random((2, 2048)) < 0.1
    masked = logits.clone()
    masked[:2][torch.from_numpy(~allowed)] = -torch.inf
    masks = [pack(allowed[0]), pack(allowed[1]), None]
    expected = [reference(line, params) for line in masked]
    drafts = sample(logits, [SampleTruncated(params, (), 0.5, 2048, 1.0, mask=mask) for mask in masks])
    for draft, probs in zip(drafts, expected, strict=True):
        assert isinstance(draft, TruncatedSample)
        order = np.argsort(draft.support)
        assert draft.support[order].tolist() == np.flatnonzero(probs).tolist()
        np.testing.assert_allclose(draft.probs[order], probs[draft.support[order]], rtol=1e-5)
    everywhere = np.arange(2048)
    verify_results = sample(logits, [SampleComplement(params, (), everywhere, 0.5, mask=mask) for mask in masks])
    for verify_result, probs in zip(verify_results, expected, strict=True):
        assert isinstance(verify_result, ComplementSample)
        np.testing.assert_allclose(verify_result.support_probs, probs, rtol=1e-5, atol=1e-12)
    best = sample(logits, [Argmax(GREEDY, (), mask=mask) for mask in masks])
    assert best == [int(line.argmax()) for line in masked]
    drawn = [GumbelMax(params, (), match_key(1, position), mask=masks[0]) for position in range(64)]
    assert all(expected[0][token] > 0 for token in sample_row(logits[0], drawn))


class _Whole(TorchDispatchMode):
    """Counts results with as many elements as the logits."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.count += isinstance(result, torch.Tensor) and result.numel() == self.size
        return result


@pytest.mark.parametrize(("values", "expected", "is_whole"), [
    ([3.0, 1.0, 4.0, 1.0, 5.0], [4, 2, 0], False), ([3.0, 5.0, 3.0, 4.0, 3.0], [1, 3, 0], True),
    ([5.0, 3.0, 5.0, 4.0, 1.0], [0, 2, 3], False),
])  # fmt: skip
def test_whole_rows_are_compared_only_if_the_last_equals_another(
    values: list[float], expected: list[int], is_whole: bool
) -> None:
    rows = torch.tensor([values])
    with _Whole(rows.numel()) as whole:
        found = largest(rows, 3)
    assert found.tolist() == [expected]
    assert bool(whole.count) == is_whole
