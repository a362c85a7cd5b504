"""Several draft models in one adaptive policy: each is a source of its own."""

import random
from collections import Counter

import pytest

from coordinator.drafters.drafter import DrafterSet
from coordinator.policy.adaptive import AdaptivePolicy
from paceline.speculation_params import Bounds
from tests.coordinator.policy.world import Guesser, World, begin, make_policy, told

ROUNDS = 300


def policy_of(world: World) -> tuple[AdaptivePolicy, dict[str, Guesser]]:
    models = {name: Guesser(world, name) for name in world.models}
    return AdaptivePolicy(DrafterSet([], [*models.values()]), Bounds(), world.experience, is_greedy=True), models


async def models_used(world: World, coin: random.Random) -> list[str]:
    """By round; "" for those without drafts."""
    policy, _ = policy_of(world)
    used, context = [], begin([0] * 50)
    for _ in range(ROUNDS):
        await world.play(policy, 1, coin, context)
        used.append("" if policy._plan.source is None else policy._plan.source.drafter.draft_model)
    return used


@pytest.mark.parametrize("num_others", [0, 3])
@pytest.mark.parametrize(
    ("models", "better"),
    [
        ({"a": (0.5, 0.002), "b": (0.9, 0.002)}, "b"),
        ({"a": (0.9, 0.002), "b": (0.5, 0.002)}, "a"),
        # Never tried, it would never show.
        ({"a": (0.8, 0.002), "b": (0.97, 0.002)}, "b"),
        ({"a": (0.7, 0.008), "b": (0.7, 0.001)}, "b"),
        ({"a": (0.8, 0.012), "b": (0.6, 0.001)}, "b"),
    ],
)
async def test_the_model_that_gains_more_is_used(
    models: dict[str, tuple[float, float]], better: str, num_others: int
) -> None:
    world, coin = World(models=models), random.Random(1)
    for other in range(num_others):
        world.active.join(other)
        world.active.has_read(other)
    await models_used(world, coin)
    assert Counter(await models_used(world, coin))[better] > 0.85 * ROUNDS


async def test_a_model_that_becomes_better_is_found() -> None:
    world, coin = World(models={"a": (0.9, 0.004), "b": (0.05, 0.002)}), random.Random(2)
    for _ in range(3):
        assert Counter(await models_used(world, coin))["a"] > 0.8 * ROUNDS
    world.models["b"] = 0.97, 0.002
    for _ in range(5):
        used = await models_used(world, coin)
    assert Counter(used)["b"] > 0.8 * ROUNDS


async def test_two_models_are_no_slower_than_the_better_alone() -> None:
    speeds = {}
    for names in ("a", "b", "ab"):
        models = {name: {"a": (0.75, 0.002), "b": (0.7, 0.002)}[name] for name in names}
        world, coin = World(models=models, read_s=0.0001), random.Random(3)
        for _ in range(2):
            tokens, seconds = await world.play(policy_of(world)[0], 2_000, coin)
        speeds[names] = tokens / seconds
    assert speeds["ab"] > 0.95 * max(speeds.values())


async def test_what_a_model_has_missed_is_read_only_for_a_rest_that_is_long_enough() -> None:
    world, coin = World(models={"a": (0.7, 0.002), "b": (0.95, 0.002)}, read_s=0.0001), random.Random(4)
    for _ in range(3):
        await models_used(world, coin)
    for max_tokens, better in ((20, "a"), (99_000, "b")):
        policy, models = policy_of(world)
        models["a"]._num_read = 1_000
        for each in policy._sources:
            # No trial of the other.
            each._savings.choices = 0.0
        proposal = await policy.propose(begin([0] * 1_000, max_tokens))
        assert (len(proposal) > 0, proposal.report.draft_model) == (True, better)


@pytest.mark.parametrize(("better", "worse"), ["ab", "ba"])
async def test_a_generation_begins_with_what_others_learned_of_each_model(better: str, worse: str) -> None:
    world, coin = World(models={better: (0.9, 0.002), worse: (0.6, 0.002)}), random.Random(8)
    await models_used(world, coin)
    used = Counter[str]()
    for _ in range(10):
        proposal = await policy_of(world)[0].propose(begin([0]))
        used[proposal.report.draft_model] += 1
        await models_used(world, coin)
    assert used[better] > 7


@pytest.mark.parametrize("num_others", [0, 3])
async def test_a_model_that_is_away_is_skipped_at_once(num_others: int) -> None:
    """Also where several generations have decided to draft for some rounds."""
    world, coin = World(models={"a": (0.95, 0.002), "b": (0.9, 0.002)}), random.Random(5)
    for other in range(num_others):
        world.active.join(other)
        world.active.has_read(other)
    await models_used(world, coin)
    policy, models = policy_of(world)
    context, used = begin([0] * 50), Counter[str]()
    for number in range(ROUNDS):
        models["a"].is_away = number // 50 % 2 == 1
        proposal = await policy.propose(context)
        assert not (models["a"].is_away and proposal.report.draft_model == "a")
        used[proposal.report.draft_model] += 1
        await world.play(policy, 1, coin, context)
    assert min(used["a"], used["b"]) > 0.2 * ROUNDS
    for each in models.values():
        each.is_away = True
    proposal = await policy.propose(context)
    assert (len(proposal), proposal.report.reason) == (0, "away")


async def test_a_model_that_is_not_used_reads_nothing() -> None:
    world, coin = World(models={"a": (0.9, 0.002), "b": (0.9, 0.5)}), random.Random(6)
    policy, models = policy_of(world)
    await world.play(policy, ROUNDS, coin, begin([0] * 50))
    assert models["a"]._num_read > 50
    assert models["b"]._num_read == 0


async def test_what_drafting_takes_is_learned_by_model() -> None:
    world, coin = World(noise=0.0), random.Random(7)
    # Both model_infos tell a millisecond for a step.
    world.draft_times = lambda draft: told(0.001, 0.0)  # type: ignore[method-assign]
    for name, draft_s in (("a", 0.003), ("b", 0.002)):
        world.models = {name: (0.9, draft_s)}
        await world.play(policy_of(world)[0], ROUNDS, coin)
    level = world.experience.costs.level
    for known in (level, level.guess()):
        assert known.drafting["model", "a"].factor == pytest.approx(3, rel=0.02)
        assert known.drafting["model", "b"].factor == pytest.approx(2, rel=0.02)


@pytest.mark.parametrize("is_copied", [True, False])
async def test_a_model_reads_no_long_prompt_for_an_answer_that_is_mostly_looked_up(is_copied: bool) -> None:
    coin = random.Random(5)
    # Nothing foretells its first words.
    text = [*range(300, 306), *(range(50, 250) if is_copied else range(400, 900))]
    world = World(alpha=0.7, draft_s=0.004, row_s=0.0005, read_s=0.0007, text=text)
    context = begin([*range(10_000, 11_000), 0, *range(50, 250)], max_tokens=600)
    policy = make_policy(world, sources="ngram model")
    await world.play(policy, 500, coin, context)
    has_read = policy._sources[0].drafter.num_cached(context) > 0
    assert has_read is not is_copied
