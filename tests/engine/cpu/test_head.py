"""A head that knows some tokens: their ids come out, and the rest is as good as impossible."""

import numpy as np
import torch

from paceline.engine.cpu.head import Head
from paceline.engine.cpu.linear import PlainLinear
from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.specs import (
    Argmax,
    GumbelMax,
    SampleComplement,
    SampleSpec,
    SampleTruncated,
    TruncatedSample,
)
from paceline.sampling_params import SamplingParams

VOCAB_SIZE = 50
IDS = np.array([7, 3, 40, 12, 0], np.int32)
HOT = SamplingParams(temperature=1.0, seed=1)


def make_head() -> tuple[Head, torch.Tensor]:
    """And logits of four rows."""
    generator = torch.Generator().manual_seed(1)
    head = Head(PlainLinear(torch.randn(len(IDS), 8, generator=generator), None), IDS, VOCAB_SIZE)
    return head, head(torch.randn(4, 8, generator=generator).numpy())


def test_known_logits_stand_at_their_ids() -> None:
    head, known = make_head()
    logits = head.to_full_vocab(known)
    assert logits.shape == (4, VOCAB_SIZE)
    assert torch.equal(logits[:, torch.from_numpy(IDS).long()], known)
    assert (logits.softmax(dim=-1) > 0).sum() == 4 * len(IDS)


def test_draws_from_known_logits_are_those_from_all() -> None:
    head, known = make_head()
    specs: list[SampleSpec] = [Argmax(HOT, ()), Argmax(HOT, ())]
    specs += [SampleTruncated(HOT, (), uniform, 3, 1.0) for uniform in (0.1, 0.9)]
    whole = CpuSampler().sample(head.to_full_vocab(known), specs)
    narrow = head.with_ids(CpuSampler().sample(known.clone(), specs))
    assert whole[:2] == narrow[:2]
    for one, other in zip(whole[2:], narrow[2:], strict=True):
        assert isinstance(one, TruncatedSample)
        assert isinstance(other, TruncatedSample)
        assert one.support.tolist() == other.support.tolist()
        np.testing.assert_allclose(one.probs, other.probs, rtol=1e-6)
        assert one.token in one.support
        # A sum taken over fewer numbers may draw another token at a boundary, and only there.
        assert one.token == other.token


def test_noise_belongs_to_tokens_not_to_their_places_in_the_head() -> None:
    head, known = make_head()
    for key in range(50):
        specs = [GumbelMax(HOT, (), 4 * key + row) for row in range(4)]
        whole = CpuSampler().sample(head.to_full_vocab(known), specs)
        assert head.with_ids(CpuSampler(IDS).sample(known.clone(), specs)) == whole


def test_draws_that_name_tokens_do_not_take_any_order() -> None:
    banned = Argmax(HOT, (3,))
    biased = Argmax(SamplingParams(logit_bias={3: 1.0}), ())
    observed = Argmax(HOT, (), num_logprobs=0)
    named: list[SampleSpec] = [
        banned,
        biased,
        observed,
        GumbelMax(SamplingParams(temperature=1.0, seed=1, top_p=0.9), (), 5),
        SampleComplement(HOT, (), IDS.astype(np.int64), 0.5),
    ]
    assert all(spec.needs_whole_vocab for spec in named)
    assert not Argmax(HOT, ()).needs_whole_vocab
    assert not SampleTruncated(HOT, (), 0.5, 3, 1.0).needs_whole_vocab
    assert not GumbelMax(HOT, (), 5).needs_whole_vocab
