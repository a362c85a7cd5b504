"""Servers whose first times are wrong, or that become slower: the policy chooses right again, as they learn from their work."""

import random

import pytest

from coordinator.remote.server_load import ForwardTimes
from paceline.engine.scheduling.learned_times import LearnedTimes
from tests.coordinator.policy.world import World, begin, make_policy

SIZES = (1, 2, 4, 8, 16)
# Rounds between two messages in which a server tells its times.
TOLD_ROUNDS = 20


class LearningWorld(World):
    """Both servers tell what they have learned."""

    def begin(self, target: float = 1.0, draft: float = 1.0) -> None:
        """`target`, `draft`: how many times too long their first times are."""
        self.target, self.draft, self.num_rounds = LearnedTimes(), LearnedTimes(), 0
        self.target.begin([(size, target * (self.verify_s + (size - 1) * self.row_s)) for size in SIZES])
        self.draft.begin([(size, draft * (self.draft_s + (size - 1) * self.read_s)) for size in SIZES])
        self._tell()
        self.experience.costs._target_times = lambda: self._target_times

    def _tell(self) -> None:
        self._target_times, self._draft_times = ForwardTimes(self.target.points), ForwardTimes(self.draft.points)

    def draft_times(self, draft: str) -> ForwardTimes:
        return self._draft_times

    async def share_drafted(self, rounds: int, coin: random.Random) -> float:
        """Returns the share of rounds with drafts, in answers of 200 tokens."""
        num_drafted, context = 0, begin([0], max_tokens=1)
        for _ in range(rounds):
            if context.num_remaining < 10:
                policy, context = make_policy(self), begin([0] * 50, max_tokens=200)
            await self.play(policy, 1, coin, context)
            num_drafts = len(policy._plan)
            num_drafted += num_drafts > 0
            self.target.count_step(self._about(self.verify_s + self.row_s * num_drafts, coin), 1 + num_drafts)
            for _ in range(num_drafts):
                self.draft.count_step(self._about(self.draft_s, coin), 1)
            self.num_rounds += 1
            if self.num_rounds % TOLD_ROUNDS == 0:
                self._tell()
        return num_drafted / rounds


@pytest.mark.parametrize(("target", "draft"), [(1.0, 3.0), (1.0, 0.25), (2.0, 0.5), (0.5, 2.0), (0.25, 1.0)])
@pytest.mark.parametrize(("alpha", "pays"), [(0.8, True), (0.3, False)])
async def test_wrong_first_times_are_forgotten(target: float, draft: float, alpha: float, pays: bool) -> None:
    world, coin = LearningWorld(alpha, draft_s=0.006, row_s=0.001, read_s=0.0001), random.Random(1)
    world.begin(target, draft)
    await world.share_drafted(250, coin)
    share = await world.share_drafted(300, coin)
    assert share > 0.9 if pays else share < 0.1


@pytest.mark.parametrize("slowness", [6, 10])
async def test_a_draft_server_that_loses_its_core_and_gets_it_back(slowness: int) -> None:
    world, coin = LearningWorld(0.7, draft_s=0.004, row_s=0.001, read_s=0.0001), random.Random(2)
    world.begin()
    assert await world.share_drafted(150, coin) > 0.8
    world.draft_s *= slowness
    await world.share_drafted(60, coin)
    assert await world.share_drafted(300, coin) < 0.1
    world.draft_s /= slowness
    # The dearer it seems, the later it is tried.
    await world.share_drafted(1500, coin)
    assert await world.share_drafted(300, coin) > 0.8


async def test_servers_that_become_slower_together_change_nothing() -> None:
    world, coin = LearningWorld(0.7, draft_s=0.004, row_s=0.001, read_s=0.0001), random.Random(3)
    world.begin()
    for slowness in (1.0, 2.0, 0.5):
        world.draft_s, world.verify_s, world.row_s = slowness * 0.004, slowness * 0.02, slowness * 0.001
        await world.share_drafted(100, coin)
        assert await world.share_drafted(300, coin) > 0.8, slowness
