"""Acceptance by a coin: as often as told, marked as what it is, with everything else as always."""

import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise, SyntheticAcceptance, VerifyResult
from paceline.client import AsyncClient
from paceline.errors import InvalidArgument
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams
from tests.conftest import TINY
from tests.hosted import Host
from tests.services import Trio

CHANCE = 0.75
DRAFTS = [11, 12, 13]


def decide(chance: float, seed: int, rule: Rule = Rule.MATCH) -> Outcome:
    verify_result = (
        VerifyResult([1, 2, 3, 4]) if rule is Rule.MATCH else VerifyResult([4], outside_tokens=[1, 2, 3], rule=rule)
    )
    return SyntheticAcceptance(chance)(Proposal(DRAFTS), verify_result, RoundNoise(seed, 5))


@pytest.mark.parametrize("rule", list(Rule))
def test_a_coin_decides_and_the_target_goes_on(rule: Rule) -> None:
    outcomes = [decide(CHANCE, seed, rule) for seed in range(3000)]
    for position in range(3):
        reached = [each for each in outcomes if each.num_accepted >= position]
        share = sum(each.num_accepted > position for each in reached) / len(reached)
        assert share == pytest.approx(CHANCE, abs=0.04)
    for each in outcomes:
        assert each.tokens == [*DRAFTS[: each.num_accepted], [1, 2, 3, 4][each.num_accepted]]
        assert each.last_origin is (Origin.BONUS if each.num_accepted == 3 else Origin.RECOVERED)


def test_certainty_is_certain() -> None:
    assert {decide(1.0, seed).num_accepted for seed in range(200)} == {3}
    assert {decide(0.0, seed).num_accepted for seed in range(200)} == {0}
    with pytest.raises(InvalidArgument, match=r"synthetic_acceptance_rate is 1.5; it must be in \[0, 1\]"):
        SyntheticAcceptance(1.5)


@pytest.fixture(scope="module")
def synthetic_trio(host: Host) -> Trio:
    return host.trio(TINY, TINY, ("--synthetic-acceptance-rate", str(CHANCE)))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_services_accept_as_often_and_say_so(synthetic_trio: Trio, temperature: float) -> None:
    async with AsyncClient(synthetic_trio.address) as client:
        sampling = SamplingParams(max_tokens=300, temperature=temperature, seed=3, ignore_eos=True)
        done = await client.complete(
            "t1 t2 t3", sampling, SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
        )
    assert done.finish is not None
    figures = done.finish.speculation
    assert figures.synthetic_acceptance_rate == CHANCE
    assert len(done.token_ids) == 300
    # 1 + a + a^2 + a^3 + a^4, give or take the luck of some hundred rounds.
    assert figures.mean_acceptance_length == pytest.approx(sum(CHANCE**i for i in range(5)), abs=0.5)
    assert "the output is meaningless" in synthetic_trio.coordinator.log.read_text()
