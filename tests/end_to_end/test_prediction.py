"""Predicted outputs through the real services: the same output with fewer runs of the target."""

import collections
import itertools

import numpy as np
import pytest
from scipy.special import softmax
from scipy.stats import chi2

from paceline.client import AsyncClient, Client, Completion, Speculation
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, EntropyAdaptive, Rule, SpeculationParams
from tests.end_to_end.tiny_oracle import model_logits, oracle_ids
from tests.services import Trio
from tests.slices import slice_of

pytestmark = pytest.mark.slow

PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams(max_tokens=200, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0.8, seed=5)
EITHER = pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
LENGTHS = [4, 16, Bounds(0, 6), EntropyAdaptive(Bounds(1, 6))]
DRAFTERS = [Drafter.MODEL, Drafter.NGRAM, Drafter.HYBRID]
IN_SLICE = [(Drafter.MODEL, 4), (Drafter.NGRAM, 16), (Drafter.HYBRID, Bounds(0, 6))]


def figures_of(completion: Completion) -> Speculation:
    assert completion.finish is not None
    return completion.finish.speculation


async def plain_ids(client: AsyncClient, sampling: SamplingParams) -> list[int]:
    return (await client.complete(PROMPT, sampling, SpeculationParams(enabled=False))).token_ids


def edited(ids: list[int]) -> list[int]:
    """Three tokens replaced by two, and four left out."""
    return [*ids[:60], 7, 7, *ids[63:130], *ids[134:]]


@EITHER
@pytest.mark.parametrize(
    ("drafter", "length"), slice_of(itertools.product(DRAFTERS, LENGTHS), IN_SLICE.__contains__), ids=str
)
async def test_a_prediction_right_or_wrong_changes_no_output(
    unlike_trio: Trio, sampling: SamplingParams, drafter: Drafter, length: object
) -> None:
    speculation = SpeculationParams(drafter=drafter, num_speculative_tokens=length)  # type: ignore[arg-type]
    async with AsyncClient(unlike_trio.address) as client:
        expected = await plain_ids(client, sampling)
        for prediction in (expected, edited(expected), [], [9] * 400):
            done = await client.complete(PROMPT, sampling, speculation, prediction=prediction)
            assert done.token_ids == expected


@EITHER
async def test_a_right_prediction_saves_most_runs_of_the_target(tiny_trio: Trio, sampling: SamplingParams) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=16)
    async with AsyncClient(tiny_trio.address) as client:
        expected = await plain_ids(client, sampling)
        figures = figures_of(await client.complete(PROMPT, sampling, speculation, prediction=expected))
    # The first round has no drafts, the second six, each of the others sixteen and a token of the target's.
    assert figures.rounds == 1 + -(-(200 - 1 - 7) // 17)
    assert figures.prediction_accepted == figures.accepted == 200 - 1 - figures.rounds
    assert figures.prediction_rejected == 0


async def test_an_edited_prediction_is_used_before_and_behind_the_edit(unlike_trio: Trio) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=8)
    async with AsyncClient(unlike_trio.address) as client:
        expected = await plain_ids(client, GREEDY)
        without = figures_of(await client.complete(PROMPT, GREEDY, speculation))
        figures = figures_of(await client.complete(PROMPT, GREEDY, speculation, prediction=edited(expected)))
    assert (without.prediction_accepted, without.prediction_rejected) == (0, 0)
    assert figures.prediction_accepted > 150
    assert 0 < figures.prediction_rejected < 50
    assert figures.rounds < without.rounds / 2
    assert figures.proposed >= figures.prediction_accepted + figures.prediction_rejected


async def test_predicted_text_is_as_good_as_its_tokens(tiny_trio: Trio) -> None:
    async with AsyncClient(tiny_trio.address) as client:
        plain = await client.complete("t5 t6", GREEDY, SpeculationParams(enabled=False))
        done = await client.complete(
            "t5 t6", GREEDY, SpeculationParams(num_speculative_tokens=4), prediction=plain.text
        )
    assert done.token_ids == plain.token_ids
    assert figures_of(done).prediction_accepted > 100


async def test_without_speculation_a_prediction_is_not_used(tiny_trio: Trio) -> None:
    async with AsyncClient(tiny_trio.address) as client:
        expected = await plain_ids(client, GREEDY)
        for off in (SpeculationParams(enabled=False), SpeculationParams(num_speculative_tokens=0)):
            assert figures_of(await client.complete(PROMPT, GREEDY, off, prediction=expected)).proposed == 0


async def test_each_of_n_samples_follows_the_prediction_by_itself(unlike_trio: Trio) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
    many = SamplingParams(max_tokens=80, ignore_eos=True, temperature=0.8, seed=5, n=4)
    async with AsyncClient(unlike_trio.address) as client:
        plain = await client.complete_all(PROMPT, many, speculation)
        done = await client.complete_all(PROMPT, many, speculation, prediction=plain[2].token_ids)
    assert [each.token_ids for each in done] == [each.token_ids for each in plain]
    accepted = [figures_of(each).prediction_accepted for each in done]
    assert accepted[2] == max(accepted) > 50


def test_the_client_for_threads_takes_a_prediction(tiny_trio: Trio) -> None:
    with Client(tiny_trio.address) as client:
        plain = client.complete(PROMPT, GREEDY)
        pieces = list(client.stream(PROMPT, GREEDY, prediction=plain.token_ids))
    assert [token for chunk in pieces for token in chunk.token_ids] == plain.token_ids


async def test_under_rejection_the_output_follows_the_targets_distribution_with_a_prediction_too(
    unlike_trio: Trio,
) -> None:
    """By turns the prediction's tokens are matched and the model's are accepted by ratio."""
    sampling = SamplingParams(max_tokens=3, temperature=1.0, ignore_eos=True, n=64)
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3, rule=Rule.REJECTION)
    likely = oracle_ids("tiny-32-a", PROMPT, SamplingParams(max_tokens=3))
    samples, accepted = [], 0
    async with AsyncClient(unlike_trio.address) as client:
        for _ in range(16):
            done = await client.complete_all(PROMPT, sampling, speculation, prediction=likely)
            samples += [each.token_ids for each in done]
            accepted += sum(figures_of(each).prediction_accepted for each in done)
    # Some 59 are expected, with a standard deviation of 7.
    assert accepted > 20, "the prediction was hardly used"
    pairs = collections.Counter((first, second) for first, second, _ in samples)
    expected = sum(count * softmax(model_logits("tiny-32-a", [*PROMPT, *pair])[-1]) for pair, count in pairs.items())
    counts = np.bincount([third for _, _, third in samples], minlength=32)
    assert (expected >= 1).all()
    # Given their pairs, counts vary less than those of one distribution, so chi-square's tail is an upper bound.
    assert ((counts - expected) ** 2 / expected).sum() < chi2.isf(1e-6, 31)
