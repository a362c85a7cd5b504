"""How likely a sampled token was, by scipy's softmax."""

import pytest
import torch
from scipy.special import softmax

from paceline.engine.sampling.logprobs import with_confidence
from paceline.engine.sampling.specs import Argmax, ConfidentSample, GumbelMax, TruncatedSample
from paceline.sampling_params import SamplingParams

LOGITS = torch.randn((4, 1000), generator=torch.Generator().manual_seed(1)) * 3


def wants(temperature: float) -> Argmax | GumbelMax:
    sampling = SamplingParams(temperature=temperature)
    if temperature == 0:
        return Argmax(sampling, (), wants_confidence=True)
    return GumbelMax(sampling, (), 7, wants_confidence=True)


def test_it_is_the_tokens_probability_at_the_temperature_of_its_row() -> None:
    temperatures, tokens = [0.0, 0.7, 1.0, 2.0], [5, 17, 999, 0]
    found = with_confidence(LOGITS, [wants(each) for each in temperatures], tokens)
    for row, (temperature, token, sample) in enumerate(zip(temperatures, tokens, found, strict=True)):
        assert isinstance(sample, ConfidentSample)
        assert sample.token == token
        expected = softmax(LOGITS[row].double().numpy() / (temperature or 1.0))[token]
        assert sample.confidence == pytest.approx(expected, rel=1e-3)


def test_who_does_not_ask_gets_what_was_sampled() -> None:
    specs = [Argmax(SamplingParams(), ()), wants(0.0)]
    found = with_confidence(LOGITS[:2], specs, [3, 4])
    assert found[0] == 3
    assert isinstance(found[1], ConfidentSample)


def test_the_smallest_temperature_is_sure_of_the_likeliest() -> None:
    likeliest = int(LOGITS[0].argmax())
    [sample] = with_confidence(LOGITS[:1], [wants(1e-300)], [likeliest])
    assert isinstance(sample, ConfidentSample)
    assert sample.confidence == pytest.approx(1.0)


def test_other_samples_stay_as_they_are() -> None:
    sample = TruncatedSample(1, torch.tensor([1]).numpy(), torch.tensor([1.0]).numpy())
    assert with_confidence(LOGITS[:1], [wants(1.0)], [sample]) == [sample]
