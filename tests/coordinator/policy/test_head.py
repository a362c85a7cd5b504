"""How much the adaptive policy asks of a target's draft head, in simulated worlds."""

import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.acceptance import Origin, Outcome, VerifyResult
from coordinator.drafters.drafter import DrafterSet
from coordinator.drafters.head import HeadDrafter
from coordinator.drafters.ngram import NgramDrafter
from coordinator.policy.adaptive import AdaptivePolicy
from coordinator.reports import NextDrafts, VerifyReport
from coordinator.stats import Round
from paceline.speculation_params import Bounds
from tests.coordinator.policy.world import World, begin, told

TEXT, WRONG = 7, 9


class HeadWorld(World):
    """Its texts are of one token, which the head drafts with the chance `alpha`, as sure as `confidence` says."""

    head_s, confidence = 0.0015, 0.6

    def policy(self, looks_up: bool = False, bounds: Bounds | None = None) -> AdaptivePolicy:
        self.head = HeadDrafter(cast(Any, SimpleNamespace(draft_head_times=told(self.head_s, 0.0))))
        lookups = [self.head, NgramDrafter()] if looks_up else [self.head]
        return AdaptivePolicy(DrafterSet(lookups), bounds or Bounds(), self.experience, is_greedy=True)

    async def decode(self, policy: AdaptivePolicy, rounds: int, coin: random.Random) -> tuple[float, float]:
        """Returns tokens a second, and the head's drafts a round."""
        context, began_s, num_drafted = begin([1, 2]), self.now_s, 0
        num_before = len(context)
        for _ in range(rounds):
            proposal = await policy.propose(context)
            accepted = next((at for at, each in enumerate(proposal.tokens) if each != TEXT), len(proposal))
            outcome, number = Outcome([TEXT] * (accepted + 1), accepted, Origin.BONUS), 0
            joint = 1.0
            while number < proposal.num_next and joint >= proposal.next_min_probability:
                number, joint = number + 1, joint * self.confidence
            drafts = [TEXT if coin.random() < self.alpha else WRONG for _ in range(number)]
            num_drafted += number
            ended_s = self.now_s + self.verify_s + self.row_s * len(proposal) + number * self.head_s
            position = len(context) + accepted + 1
            following = NextDrafts(position, drafts, [self.confidence] * number) if drafts else None
            report = VerifyReport(next_drafts=following, drafting_us=int(number * self.head_s * 1e6))
            policy.learn(Round(proposal, VerifyResult([0], report=report), outcome, self.now_s, self.now_s, ended_s))
            context.extend(outcome)
            policy.truncate(len(context) - 1)
            self.now_s = ended_s
        return (len(context) - num_before) / (self.now_s - began_s), num_drafted / rounds


@pytest.mark.parametrize("alpha", [0.4, 0.6, 0.8])
async def test_a_head_that_is_right_pays(alpha: float) -> None:
    world = HeadWorld(alpha=alpha, row_s=0.0006)
    world.confidence = alpha
    coin = random.Random(1)
    await world.decode(world.policy(), 200, coin)
    speed, _ = await world.decode(world.policy(), 400, coin)
    c, row = world.head_s / world.verify_s, world.row_s / world.verify_s
    best = max(
        sum(alpha**at for at in range(k + 1)) / (1 + k * (c + row)) for k in range(9)
    )  # fmt: skip
    assert speed * world.verify_s > 0.9 * best


@pytest.mark.parametrize("confidence", [0.3, 0.6, 0.97])
async def test_a_head_that_is_wrong_costs_little(confidence: float) -> None:
    world, coin = HeadWorld(alpha=0.02), random.Random(2)
    world.confidence = confidence
    await world.decode(world.policy(), 300, coin)
    speed, asked = await world.decode(world.policy(), 600, coin)
    assert speed * world.verify_s > 0.97
    assert asked < 0.7


async def test_where_lookups_are_right_the_head_is_asked_little() -> None:
    world, coin = HeadWorld(alpha=0.9), random.Random(3)
    world.confidence = 0.9
    policy = world.policy(looks_up=True, bounds=Bounds(0, 16))
    world.alpha = 0.0
    await world.decode(policy, 100, coin)
    _, asked = await world.decode(world.policy(looks_up=True, bounds=Bounds(0, 16)), 300, coin)
    assert asked < 1


async def test_a_head_that_became_better_is_tried_again() -> None:
    world, coin = HeadWorld(alpha=0.02), random.Random(4)
    world.confidence = 0.9
    policy = world.policy()
    await world.decode(policy, 400, coin)
    world.alpha = 0.9
    await world.decode(world.policy(), 3000, coin)
    speed, _ = await world.decode(world.policy(), 300, coin)
    assert speed * world.verify_s > 1.5


async def test_a_least_number_of_drafts_is_asked_for() -> None:
    world, coin = HeadWorld(alpha=0.02), random.Random(5)
    world.confidence = 0.1
    _, asked = await world.decode(world.policy(bounds=Bounds(3, 5)), 100, coin)
    assert 3 <= asked <= 5
