"""What the adaptive policy proposes: look-ups, a model's drafts after them, and which drafts the target gets to see."""

from collections.abc import Hashable, Sequence

import numpy as np
import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.admission import ActiveGenerations
from coordinator.context import Context
from coordinator.drafters.drafter import DrafterSet, LookupDrafter, ModelDrafter
from coordinator.policy.adaptive import PLAIN_FIRST, AdaptivePolicy
from coordinator.policy.costs import CostModel, DraftForwards
from coordinator.policy.experience import Confidence, Experience
from coordinator.remote.server_load import ForwardTimes
from coordinator.reports import DraftReport
from coordinator.stats import Round
from paceline.speculation_params import Bounds, Rule
from tests.coordinator.policy.world import begin, told


class Lookup(LookupDrafter):
    """Looks two tokens up, which are right as often as it was told."""

    name = "ngram"
    max_draft_tokens = None

    def __init__(self, hits: Sequence[bool]) -> None:
        self._hits = [("match", hit) for hit in hits]

    async def candidates(self, context: Context, num_tokens: int) -> Sequence[Hashable]:
        return ["match"] * min(2, num_tokens)

    def take_hits(self) -> Sequence[tuple[Hashable, bool]]:
        hits, self._hits = self._hits, []
        return hits

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        return Proposal([7, 8][:num_draft_tokens], report=DraftReport(drafter=self.name))


class Model(ModelDrafter):
    """Drafts with the given confidences, and notes what it was asked."""

    name = "model"
    has_confidence, stops_early = True, True

    def __init__(self, confidences: Sequence[float], draws: bool = False) -> None:
        self._confidences, self._draws = list(confidences), draws
        self.after: Sequence[int] = ()
        self.min_probability = 0.0

    @property
    def times(self) -> ForwardTimes:
        return told(0.002, 0.0001)

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        self.after, self.min_probability = list(after), min_probability
        confidences = self._confidences[:num_draft_tokens]
        num_sure = next((at for at, each in enumerate(confidences) if each < min_probability), num_draft_tokens)
        confidences = confidences[: num_sure + 1]
        tokens = [20 + index for index in range(len(confidences))]
        supports = [np.array([token, 99]) for token in tokens] if self._draws else []
        probs = [np.array([each, 1 - each], np.float32) for each in confidences] if self._draws else []
        return Proposal(tokens, supports, probs, DraftReport(drafter=self.name, confidences=confidences))


def make(
    lookup: Lookup | None, model: Model | None, row_s: float = 0.001, bounds: Bounds | None = None
) -> AdaptivePolicy:
    experience = Experience(CostModel(ActiveGenerations(), lambda: told(0.02, row_s)))
    experience.costs.level.num_plain = PLAIN_FIRST
    for case in range(10):
        experience.confidence(("model", ""), is_greedy=True).learn(0.5, case % 2 == 0)
    drafters = DrafterSet([] if lookup is None else [lookup], [] if model is None else [model])
    return AdaptivePolicy(drafters, bounds or Bounds(), experience, is_greedy=True)


async def test_a_look_up_that_ends_early_is_continued_by_the_model() -> None:
    model = Model([0.9, 0.9])
    proposal = await make(Lookup([True] * 50), model).propose(begin([1]))
    assert (proposal.tokens, model.after) == ([7, 8, 20, 21], [7, 8])
    assert proposal.report.split(3) == [("ngram", "", 2), ("model", "", 1)]


async def test_looked_up_tokens_have_no_distribution_where_a_models_have() -> None:
    proposal = await make(Lookup([True] * 50), Model([0.9], draws=True)).propose(begin([1]))
    assert proposal.tokens == [7, 8, 20]
    assert [list(each) for each in proposal.supports] == [[20, 99]]
    assert proposal.num_matched(Rule.REJECTION) == 2


async def test_matches_that_mislead_are_left_to_the_model() -> None:
    model = Model([0.9, 0.9])
    proposal = await make(Lookup([False] * 50), model).propose(begin([1]))
    assert (proposal.tokens, model.after) == ([20, 21], [])


async def test_the_target_does_not_see_drafts_that_are_not_worth_their_place() -> None:
    proposal = await make(None, Model([0.9, 0.9, 0.02, 0.9]), row_s=0.004).propose(begin([1]))
    assert proposal.tokens == [20, 21]


@pytest.mark.parametrize("last", [0.02, 0.5, 0.98])
async def test_a_drawn_token_is_not_dropped_for_what_it_is(last: float) -> None:
    """That would bias the output: whether it stays depends on those before it alone."""
    proposal = await make(None, Model([0.9, last], draws=True), row_s=0.004).propose(begin([1]))
    assert len(proposal.tokens) == len(proposal.supports) == 2


@pytest.mark.parametrize("first", [0.02, 0.98])
async def test_nor_for_what_comes_after_it(first: float) -> None:
    """Where one more token is cheap after a dear one, whether the second is worth it hangs on what the first is."""
    policy = make(None, Model([first, 0.9], draws=True))
    policy._costs._target_times = lambda: ForwardTimes([(1, 0.02), (2, 0.037), (8, 0.038)])
    assert len((await policy.propose(begin([1]))).tokens) >= 1


async def test_bounds_hold_whatever_is_dropped() -> None:
    policy = make(None, Model([0.01] * 8), row_s=0.015, bounds=Bounds(3, 5))
    assert len(await policy.propose(begin([1]))) == 3


async def test_a_crowd_keeps_its_plan_for_as_long_as_its_decision() -> None:
    """Else a busy coordinator plans as long as it does everything else."""
    model = Model([0.9] * 8)
    policy = make(None, model)
    active = policy._costs.active
    for generation in (policy, "another"):
        active.join(generation)
        active.has_read(generation)
    policy._costs.level.num_plain = 2 * PLAIN_FIRST
    await policy.propose(begin([1]))
    limits = []
    for row_s in (0.001, 0.019):
        policy._costs._target_times = lambda row_s=row_s: told(0.02, row_s)  # type: ignore[misc]
        await policy.propose(begin([1]))
        limits.append(model.min_probability)
    assert limits[0] == limits[1] > 0
    policy._costs.decide(gains=True)
    policy._costs.level.decided_until += 1
    await policy.propose(begin([1]))
    assert model.min_probability > limits[0]


async def test_a_model_stops_sooner_where_its_drafts_cost_more() -> None:
    cheap, dear = Model([0.9] * 8), Model([0.9] * 8)
    await make(None, cheap, row_s=0.0001).propose(begin([1]))
    await make(None, dear, row_s=0.004).propose(begin([1]))
    assert 0 < cheap.min_probability < dear.min_probability < 1


@pytest.mark.parametrize("probability", [0.9, 0.5, 1e-4])
@pytest.mark.parametrize("chance", [0.25, 0.5, 0.84])
def test_confidence_learns_what_a_probability_is_worth(probability: float, chance: float) -> None:
    confidence, found = Confidence(), []
    for case in range(4000):
        confidence.learn(probability, (case * 0.618) % 1 < chance)
        found.append(confidence.chance(probability))
    # An exponent of 4 at most.
    assert np.mean(found[1000:]) == pytest.approx(max(chance, probability**4), abs=0.05)
    assert confidence.chance(confidence.inverse(0.7)) == pytest.approx(0.7)


def test_an_untested_confidence_drops_no_draft() -> None:
    confidence = Confidence()
    assert confidence.inverse(0.9) < 1e-9
    assert not confidence.is_known


def test_what_was_drafted_ahead_says_nothing_of_how_long_drafting_takes() -> None:
    costs = CostModel(ActiveGenerations(), lambda: told(0.02, 0.0))
    forwards = DraftForwards("model", told(0.005, 0.0), are_parallel=False)
    for is_ahead, propose_s in ((False, 0.01), (True, 0.0)) * 20:
        costs.note(costs, is_drafting=True)
        proposal = Proposal([1, 2], report=DraftReport(drafter="model", is_ahead=is_ahead))
        outcome, ended_s = Outcome([1, 2, 3], 2, Origin.BONUS), propose_s + 0.02
        finished = Round(proposal, VerifyResult([1, 2, 3]), outcome, 0.0, propose_s, ended_s)
        costs.learn(finished, ended_s, forwards, 2, is_like_others=True, num_unfed=1)
    assert costs.draft_s(forwards)(1, 2) == pytest.approx(0.01)


def test_forward_times_are_linear_between_and_after_the_sizes() -> None:
    times = ForwardTimes([(1, 10.0), (4, 13.0), (8, 21.0)])
    found = [times(size) for size in (0, 1, 2, 4, 6, 8, 16)]
    assert found == pytest.approx([10, 10, 11, 13, 17, 21, 37])
