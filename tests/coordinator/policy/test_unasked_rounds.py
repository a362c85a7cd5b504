"""When the adaptive policy lets a target go on by itself, in simulated worlds with messages that take time."""

import random
from statistics import mean

import pytest

from coordinator.acceptance import Origin, Outcome, VerifyResult
from coordinator.drafters.drafter import DrafterSet
from coordinator.drafters.ngram import NgramDrafter
from coordinator.policy.adaptive import AdaptivePolicy
from coordinator.reports import VerifyReport
from coordinator.stats import Round
from paceline.speculation_params import Bounds
from tests.coordinator.policy.world import World, begin


class Waiting(AdaptivePolicy):
    goes_on = False


class WiredWorld(World):
    """A round waits for its message, unless the target has gone on with it; drafts then wait until it is over."""

    message_s = 0.004

    async def decode(self, policy: AdaptivePolicy, text: list[int]) -> tuple[float, float]:
        """Returns seconds a token, and the share of rounds that were not asked for."""
        context, began_s, num_left, num_unasked, num_rounds = begin([1]), self.now_s, 0, 0, 0
        while context.num_generated < len(text):
            proposal = await policy.propose(context)
            coming = [*text[context.num_generated :], *[0] * len(proposal)]
            num_right = next((at for at, each in enumerate(proposal.tokens) if each != coming[at]), len(proposal))
            is_unasked = num_left > 0 and not proposal.tokens
            computed_s = self.verify_s + self.row_s * len(proposal)
            wait_s = 0.0 if is_unasked else self.verify_s if num_left else self.message_s
            num_left = num_left - 1 if is_unasked else proposal.num_more_rounds
            ended_s = self.now_s + wait_s + computed_s
            outcome = Outcome(coming[: num_right + 1], num_right, Origin.BONUS)
            report = VerifyReport(compute_us=int(computed_s * 1e6), is_unasked=is_unasked)
            policy.learn(Round(proposal, VerifyResult([0], report=report), outcome, self.now_s, self.now_s, ended_s))
            context.extend(outcome)
            policy.truncate(len(context) - 1)
            self.now_s, num_unasked, num_rounds = ended_s, num_unasked + is_unasked, num_rounds + 1
        return (self.now_s - began_s) / context.num_generated, num_unasked / num_rounds


def text_of(share_copied: float, coin: random.Random, length: int = 400) -> list[int]:
    """A text of which a share is copied from before, in pieces of eight tokens."""
    text: list[int] = []
    while len(text) < length:
        if len(text) > 40 and coin.random() < share_copied / (share_copied + 8 * (1 - share_copied)):
            first = coin.randrange(len(text) - 10)
            text += text[first : first + 10]
        else:
            text.append(coin.randrange(5, 390))
    return text


async def speeds(share_copied: float) -> tuple[float, float]:
    """Returns the speed over that of a target that waits, and the share of rounds that were not asked for."""
    ratios, shares = [], []
    for seed in range(6):
        text, seconds = text_of(share_copied, random.Random(seed)), []
        for kind in (Waiting, AdaptivePolicy):
            world = WiredWorld(row_s=0.001)
            drafters = DrafterSet([NgramDrafter()])
            policy = kind(drafters, Bounds(), world.experience, is_greedy=True)
            token_s, share = await world.decode(policy, text)
            seconds.append(token_s)
        ratios.append(seconds[0] / seconds[1])
        shares.append(share)
    return mean(ratios), mean(shares)


async def test_what_is_never_interrupted_waits_for_almost_no_message() -> None:
    ratio, share = await speeds(0.0)
    assert share > 0.8
    assert ratio > 1.12


async def test_what_a_message_takes_is_learned_of_rounds_that_wait_for_one() -> None:
    world = WiredWorld()
    policy = AdaptivePolicy(DrafterSet([NgramDrafter()]), Bounds(), world.experience, is_greedy=True)
    await world.decode(policy, text_of(0.0, random.Random(1)))
    assert world.experience.costs.level.plain.overhead_s == pytest.approx(world.message_s)


@pytest.mark.parametrize("share_copied", [0.3, 0.6, 0.9, 1.0])
async def test_it_costs_no_text_its_drafts(share_copied: float) -> None:
    ratio, _ = await speeds(share_copied)
    assert ratio > 0.98


async def test_a_text_that_is_copied_everywhere_is_asked_for() -> None:
    _, share = await speeds(1.0)
    assert share < 0.3
