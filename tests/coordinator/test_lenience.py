"""Lenience: under `rejection` no token comes more often than p / lenience; greedy, none below lenience times the best.

The first part plays rounds with known p and q, so all of it repeats exactly; the second
asks the real services.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise, VerifyResult, accept
from paceline.client import AsyncClient, Completion
from paceline.errors import InvalidArgument
from paceline.noise import Purpose, make_key, uniform
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, DraftMode, Rule, SpeculationParams
from tests.end_to_end.tiny_oracle import oracle_logprobs
from tests.services import Trio

Law = NDArray[np.float64]  # [vocab_size]
NUM_DRAWS = 16_384
NEVER = 99
# In opposite rank order, and p with one token that may not come at all.
P = np.array([0.0, 0.02, 0.05, 0.08, 0.1, 0.15, 0.2, 0.4])
Q = np.array([0.08, 0.3, 0.22, 0.15, 0.1, 0.07, 0.05, 0.03])
ROUND_START = 7


def draw(probs: NDArray[np.floating], key: int) -> int:
    """Inverts the cumulative sum, as the servers do."""
    sums = probs.astype(np.float64).cumsum()
    return int(np.searchsorted(sums, uniform(key) * sums[-1], side="right"))


def key_of(seed: int, purpose: Purpose) -> int:
    return make_key(seed, ROUND_START, ROUND_START, purpose)


def cut(q: Law, size: int) -> Law:
    """What is drawn from when only the `size` likeliest are kept."""
    kept = np.where(np.argsort(np.argsort(-q)) < size, q, 0)
    return kept / kept.sum()


def play(seed: int, q: Law, lenience: float | None) -> Outcome:
    """One draft from q, judged; None: without naming a lenience."""
    support = np.flatnonzero(q)
    outside = P.copy()
    outside[support] = 0
    outside_token = draw(outside, key_of(seed, Purpose.OUTSIDE)) if outside.any() else NEVER
    sent = q[support].astype(np.float32)
    token = int(support[draw(sent, key_of(seed, Purpose.DRAFT))])
    proposal = Proposal([token], [support], [sent])
    more = {} if lenience is None else {"lenience": lenience}
    verify_result = VerifyResult(
        [0], [P[support].astype(np.float32)], [float(outside.sum())], [outside_token], rule=Rule.REJECTION, **more
    )
    return accept(proposal, verify_result, RoundNoise(seed, ROUND_START))


def play_many(q: Law, lenience: float) -> tuple[Law, float]:
    """How often each token came first, and the share of drafts accepted."""
    outcomes = [play(seed, q, lenience) for seed in range(NUM_DRAWS)]
    counts = np.bincount([outcome.tokens[0] for outcome in outcomes], minlength=len(P))
    assert len(counts) == len(P), "a token that can't be"
    return counts / NUM_DRAWS, sum(outcome.num_accepted for outcome in outcomes) / NUM_DRAWS


def deviation(probs: NDArray[np.float64] | float) -> NDArray[np.float64] | float:
    """Of a share of NUM_DRAWS."""
    return np.sqrt(probs * (1 - probs) / NUM_DRAWS)


@pytest.mark.parametrize("size", [8, 4], ids=["full support", "truncated support"])
@pytest.mark.parametrize("lenience", [0.5, *(pytest.param(each, marks=pytest.mark.slow) for each in (1.0, 0.8, 0.2))])
def test_no_token_comes_more_often_than_p_over_lenience_and_acceptance_rises_as_it_should(
    lenience: float, size: int
) -> None:
    q = cut(Q, size)
    shares, rate = play_many(q, lenience)
    bound = np.minimum(1, P / lenience)
    assert (shares <= bound + 4.5 * deviation(bound)).all()
    kept = np.minimum(q, P / lenience)
    assert abs(rate - kept.sum()) < 4 * deviation(kept.sum())
    residual = np.maximum(0, P - q)
    distribution = kept + (1 - kept.sum()) * residual / residual.sum()
    assert (np.abs(shares - distribution) <= 4.5 * deviation(distribution) + 1e-6).all()
    if lenience == 1:
        np.testing.assert_allclose(distribution, P, atol=1e-12)
    else:
        assert kept.sum() > np.minimum(q, P).sum() + 0.03, "lenience that changes nothing proves nothing"
        assert (shares > P + 5 * deviation(P)).any()


def test_lenience_of_1_is_the_lossless_rule_seed_for_seed() -> None:
    assert all(play(seed, Q, 1.0) == play(seed, Q, None) for seed in range(5000))


def test_draft_of_no_probability_is_never_accepted_however_lenient() -> None:
    outcomes = [play(seed, np.eye(8)[0], 1e-6) for seed in range(200)]
    assert all(outcome.last_origin is Origin.RECOVERED for outcome in outcomes)


def test_under_match_the_targets_flag_accepts_and_its_own_token_ends_the_round() -> None:
    proposal, noise = Proposal([3, 4, 5]), RoundNoise(0, 0)
    for flags, expected in (
        ([True, True, True], Outcome([3, 4, 5, 9], 3, Origin.BONUS)),
        ([True, False, True], Outcome([3, 7], 1, Origin.RECOVERED)),
        ([], Outcome([6], 0, Origin.RECOVERED)),
    ):
        verify_result = VerifyResult([6, 7, 5, 9], lenient_accepts=flags, lenience=0.5)
        assert accept(proposal, verify_result, noise) == expected


TARGET = "tiny-32-a"
PROMPT = [3, 16, 12]
GREEDY = SamplingParams(max_tokens=60, ignore_eos=True, logprobs=3)
CONTROLLED = replace(GREEDY, repetition_penalty=1.2, frequency_penalty=0.3, banned_token_ids=(4, 5))
SAMPLED = SamplingParams(max_tokens=40, temperature=1.0, ignore_eos=True)
AHEAD = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
PLAIN = SpeculationParams(enabled=False)


async def complete(trio: Trio, *requests: tuple[SamplingParams, SpeculationParams]) -> list[Completion]:
    """All at once."""
    async with AsyncClient(trio.address) as client:
        return await asyncio.gather(*(client.complete(PROMPT, *request) for request in requests))


@pytest.mark.parametrize("drafter", [Drafter.MODEL, Drafter.NGRAM])
@pytest.mark.parametrize("sampling", [GREEDY, CONTROLLED], ids=["free", "controlled"])
@pytest.mark.parametrize("lenience", [0.5, 0.05])
async def test_greedy_emits_no_token_below_lenience_times_the_best(
    lenience: float, sampling: SamplingParams, drafter: Drafter, unlike_trio: Trio
) -> None:
    speculation = replace(AHEAD, drafter=drafter)
    lossless, lenient = await complete(
        unlike_trio, (sampling, speculation), (sampling, replace(speculation, lenience=lenience))
    )
    for entry, token, origin in zip(lenient.logprobs, lenient.token_ids, lenient.origins, strict=True):
        assert entry.logprob >= entry.top_logprobs[0] + np.log(lenience) - 1e-4
        assert origin == "A" or token == entry.top_token_ids[0], "the target's own tokens are its likeliest"
    # What is reported of a token that was let through is that token's own.
    distributions = oracle_logprobs(TARGET, PROMPT, lenient.token_ids, sampling)
    ours = [entry.logprob for entry in lenient.logprobs]
    np.testing.assert_allclose(ours, distributions[np.arange(len(ours)), lenient.token_ids], atol=1e-4)
    assert all(
        entry.top_token_ids[0] == token for entry, token in zip(lossless.logprobs, lossless.token_ids, strict=True)
    )
    if drafter is Drafter.MODEL and lenience < 0.1:
        assert any(
            entry.top_token_ids[0] != token for entry, token in zip(lenient.logprobs, lenient.token_ids, strict=True)
        )
        assert rate(lenient) > rate(lossless)


def rate(*completions: Completion) -> float:
    figures = [completion.finish.speculation for completion in completions]
    return sum(each.accepted for each in figures) / sum(each.proposed for each in figures)


async def test_sampling_by_rejection_accepts_more_the_more_lenient_it_is(unlike_trio: Trio) -> None:
    rates = []
    for lenience in (1.0, 0.4, 0.1):
        speculation = replace(AHEAD, rule=Rule.REJECTION, lenience=lenience)
        rates.append(
            rate(*await complete(unlike_trio, *((replace(SAMPLED, seed=seed), speculation) for seed in range(8))))
        )
    assert rates[0] * 1.25 < rates[1] < rates[2] / 1.25


async def test_lenience_is_reported_where_it_is_not_1(unlike_trio: Trio) -> None:
    for sampling in (GREEDY, SAMPLED):
        lossless, named, lenient = await complete(
            unlike_trio,
            (sampling, AHEAD),
            (sampling, replace(AHEAD, lenience=1.0)),
            (sampling, replace(AHEAD, lenience=0.5)),
        )
        assert lossless.finish.speculation.lenience is None
        assert named.finish.speculation.lenience is None
        assert lenient.finish.speculation.lenience == 0.5


async def test_lenience_of_1_is_greedy_decoding(unlike_trio: Trio) -> None:
    plain, lenient = await complete(unlike_trio, (GREEDY, PLAIN), (GREEDY, replace(AHEAD, lenience=1.0)))
    assert lenient.token_ids == plain.token_ids


@pytest.mark.parametrize(
    "speculation",
    [
        replace(AHEAD, rule=Rule.MATCH),
        replace(AHEAD, draft_mode=DraftMode.COUPLED),
        replace(AHEAD, draft_mode=DraftMode.GREEDY),
        replace(AHEAD, drafter=Drafter.NGRAM),
    ],
    ids=["match", "coupled", "drawn greedily", "n-gram"],
)
async def test_match_above_temperature_0_refuses_lenience(speculation: SpeculationParams, unlike_trio: Trio) -> None:
    with pytest.raises(InvalidArgument, match=r"lenience is 0\.5.*1 under match above temperature 0"):
        await complete(unlike_trio, (SAMPLED, replace(speculation, lenience=0.5)))
    await complete(unlike_trio, (replace(SAMPLED, max_tokens=2), speculation))
