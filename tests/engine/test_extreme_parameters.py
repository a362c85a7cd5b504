"""Whatever a request may ask for, a sample is a token that may be drawn: any parameters, any finite logits."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.logits_processors import process_logits
from paceline.engine.sampling.logprobs import compute_logprobs
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.specs import (
    Argmax,
    ComplementSample,
    GumbelMax,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    TokensBefore,
    TruncatedSample,
)
from paceline.engine.sampling.torch_sampler import TorchSampler
from paceline.sampling_params import MAX_REPETITION_PENALTY, MIN_REPETITION_PENALTY, SamplingParams

VOCAB_SIZE = 600
PROMPT, OUTPUT = list(range(0, 300, 2)), [1, 1, 1, 4, 599]
# The model's own logits are small numbers; the largest of float32 stand for what no model should give.
SPREADS = [0.0, 4.0, 1e4, 3e37]
SAMPLERS = [CpuSampler(), Sampler(TorchSampler())]
LEAST = float(np.nextafter(0, 1))


def numbers(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(least, most) | st.sampled_from([least, most])


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=20, unique=True).map(tuple)
    return SamplingParams(
        temperature=draw(numbers(LEAST, 1e308) | st.floats(0.1, 2.0)),
        top_k=draw(st.sampled_from([0, 0, 1, 5, 300, VOCAB_SIZE, 2**31 - 1])),
        top_p=draw(numbers(0.0, 1.0)),
        min_p=draw(numbers(0.0, 1.0)),
        repetition_penalty=draw(numbers(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)),
        presence_penalty=draw(numbers(-2, 2)),
        frequency_penalty=draw(numbers(-2, 2)),
        logit_bias=draw(st.dictionaries(st.integers(0, VOCAB_SIZE - 1), numbers(-100, 100), max_size=5)),
        banned_token_ids=draw(ids),
    )


def random_logits(spread: float, seed: int = 1) -> torch.Tensor:
    values = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)).clamp_(-3, 3)
    return values * spread


def make_specs(sampling: SamplingParams, uniform: float) -> list[SampleSpec]:
    before = TokensBefore(PROMPT, OUTPUT)
    support: NDArray[np.int64] = np.array([0, 7, 599])
    return [
        Argmax(sampling, (3,), before=before),
        GumbelMax(sampling, (3,), 12345, before=before),
        SampleTruncated(sampling, (3,), uniform, 64, 0.995, before=before),
        SampleComplement(sampling, (3,), support, uniform, before=before),
    ]


@settings(deadline=None, max_examples=150)
@given(params(), st.sampled_from(SPREADS), st.floats(2.0**-53, 1 - 2.0**-53), st.sampled_from([0, 1]))
@example(SamplingParams(temperature=1e300, banned_token_ids=(0,)), 4.0, 0.5, 0)
@example(SamplingParams(temperature=1.0, top_k=1, top_p=LEAST), 0.0, 0.5, 0)
@example(SamplingParams(temperature=1.0, top_k=1, top_p=LEAST), 0.0, 0.5, 1)
@example(SamplingParams(temperature=1.0, top_p=0.0), 4.0, 0.5, 0)
@example(SamplingParams(temperature=1.0, top_p=0.0), 4.0, 0.5, 1)
@example(SamplingParams(temperature=1.0, repetition_penalty=MIN_REPETITION_PENALTY, top_k=5), 3e37, 0.5, 0)
def test_every_sample_is_a_token_that_may_be_drawn(
    sampling: SamplingParams, spread: float, uniform: float, which: int
) -> None:
    for spec in make_specs(sampling, uniform):
        [sample] = SAMPLERS[which].sample(random_logits(spread), [spec])
        banned = {3, *sampling.banned_token_ids}
        if isinstance(sample, TruncatedSample):
            assert not banned & set(sample.support.tolist())
            assert (sample.probs > 0).all()
            assert sample.probs.sum() == pytest.approx(1, rel=1e-5)
            assert sample.token in sample.support
        elif isinstance(sample, ComplementSample):
            assert 0 <= sample.mass <= 1 + 1e-6
            assert ((sample.support_probs >= 0) & (sample.support_probs <= 1)).all()
            if sample.mass == 0:
                continue
            assert sample.token not in (0, 7, 599)
        assert (sample if isinstance(sample, int) else sample.token) not in banned


@settings(deadline=None, max_examples=150)
@given(params(), st.sampled_from(SPREADS))
def test_finite_logits_stay_finite_but_for_those_that_are_banned(sampling: SamplingParams, spread: float) -> None:
    logits = random_logits(spread)
    spec = Argmax(sampling, (3,), before=TokensBefore(PROMPT, OUTPUT), num_logprobs=5, wants_entropy=True)
    process_logits(logits, [spec])
    banned = sorted({3, *sampling.banned_token_ids})
    assert (logits[0, banned] == -torch.inf).all()
    allowed = np.delete(logits[0].numpy(), banned)
    assert np.isfinite(allowed).all()
    assert np.isfinite(allowed.max() - allowed.min())
    [row] = compute_logprobs(logits, [spec], [int(logits.argmax())])
    assert row is not None
    assert 0 <= row.entropy <= 1
    assert not np.isnan(row.top).any()
