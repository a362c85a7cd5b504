"""When the adaptive policy lets a target go on by itself, in simulated worlds with messages that take time."""

import random
from statistics import mean

import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.drafters.drafter import DrafterSet
from coordinator.drafters.ngram import NgramDrafter
from coordinator.policy.adaptive import AdaptivePolicy
from coordinator.policy.costs import Began
from coordinator.reports import VerifyReport
from coordinator.stats import Round
from paceline.speculation_params import Bounds
from tests.coordinator.policy.world import World, begin, make_policy


class Waiting(AdaptivePolicy):
    goes_on = False


class WiredWorld(World):
    """A round waits for its message, unless the target has gone on with it; drafts that come meanwhile are for the next one."""

    message_s = 0.004
    # That it takes of a forward pass to receive drafts.
    suggestion_s = 0.0005
    num_by_model = 0

    async def decode(self, policy: AdaptivePolicy, text: list[int]) -> tuple[float, float]:
        """Returns seconds a token, and the share of rounds that were not asked for."""
        context, began_s, num_left, num_unasked, num_rounds = begin([1]), self.now_s, 0, 0, 0
        luck = random.Random(1)
        # Of the round in progress if it is not asked for; what was suggested at which token of the text.
        is_free, drafts, suggested = False, list[int](), (0, list[int]())
        while (at := context.num_generated - 1) < len(text):
            started_s, proposal = self.now_s, await policy.propose(context)
            coming = [*text[at:], *[0] * 20]
            by_model = proposal.report.drafter == "model" and len(proposal) > 0
            self.num_by_model += by_model
            if by_model:
                assert not is_free, "the target would compute what is thrown away"
                proposal.tokens = [each if luck.random() < self.alpha else -1 for each in coming[: len(proposal)]]
                self.now_s += len(proposal) * self.draft_s
            if is_free:
                num_left = 0 if proposal.stops_target else num_left - 1
                suggested = (at, proposal.tokens) if proposal.tokens else suggested
                wait_s = self.suggestion_s if proposal.tokens else 0.0
                proposal = Proposal(drafts)
            else:
                num_left, suggested, wait_s = proposal.num_more_rounds, (0, []), self.message_s
            num_right = next((at for at, each in enumerate(proposal.tokens) if each != coming[at]), len(proposal))
            num_unasked, num_rounds = num_unasked + is_free, num_rounds + 1
            computed_s = self.verify_s + self.row_s * len(proposal)
            ended_s = self.now_s + wait_s + computed_s
            first, tokens = suggested
            known = text[first : at + num_right + 1]
            drafts = tokens[len(known) :] if tokens[: len(known)] == known else []
            is_over = num_left == 0
            outcome = Outcome(coming[: num_right + 1], num_right, Origin.BONUS)
            report = VerifyReport(compute_us=int(computed_s * 1e6), is_free=not is_over)
            policy.learn(Round(proposal, VerifyResult([0], report=report), outcome, started_s, self.now_s, ended_s))
            context.extend(outcome)
            policy.truncate(len(context) - 1)
            self.now_s, is_free = ended_s, not is_over
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


async def test_a_target_that_goes_on_stops_before_a_model_drafts() -> None:
    # The model pays in some rounds, and in others not.
    world = WiredWorld(alpha=0.55, draft_s=0.006)
    text = text_of(0.3, random.Random(1), length=1600)
    _, share = await world.decode(make_policy(world, sources="ngram model"), text)
    assert 0.3 < share < 0.95
    assert world.num_by_model > 20


async def test_what_a_message_takes_is_learned_of_rounds_that_wait_for_one() -> None:
    world = WiredWorld()
    policy = AdaptivePolicy(DrafterSet([NgramDrafter()]), Bounds(), world.experience, is_greedy=True)
    await world.decode(policy, text_of(0.0, random.Random(1)))
    assert world.experience.costs.level.extras[Began.ASKED].seconds == pytest.approx(world.message_s)


@pytest.mark.parametrize("share_copied", [0.3, 0.6, 0.9, 1.0])
async def test_no_text_is_slower_than_where_each_round_is_asked_for(share_copied: float) -> None:
    ratio, _ = await speeds(share_copied)
    assert ratio > 1.01


async def test_a_text_that_is_copied_everywhere_is_mostly_asked_for() -> None:
    _, share = await speeds(1.0)
    assert share < 0.5
