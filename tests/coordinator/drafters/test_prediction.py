"""The prediction drafter: follows the output through the prediction, and finds the place again where they part."""

import random
from dataclasses import replace

import pytest

from coordinator.admission import ActiveGenerations
from coordinator.context import Context
from coordinator.drafters.drafter import Resources
from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.prediction import PredictionDrafter
from coordinator.policy.costs import CostModel
from coordinator.policy.experience import Experience
from coordinator.policy.policies import Policies
from coordinator.policy.policy import FixedPolicy, PredictionPolicy
from coordinator.remote.server_load import ForwardTimes
from paceline.speculation_params import Bounds, Drafter, DraftLength, EntropyAdaptive, SpeculationParams
from tests.coordinator.contexts import decide, make_context

PROMPT = [900, 901]
PREDICTION = list(range(100, 200))


async def proposed(prediction: list[int], output: list[int], most: int = 16) -> list[int]:
    """What is proposed after `output`."""
    return (await PredictionDrafter(prediction).propose(after(output), most)).tokens


def after(output: list[int]) -> Context:
    context = make_context(PROMPT, trace=True)
    decide(context, output)
    return context


async def test_output_that_begins_as_predicted_is_drafted_from_its_first_token_on() -> None:
    assert await proposed(PREDICTION, [100]) == [101, 102, 103, 104, 105, 106]


async def test_drafts_grow_with_the_tokens_that_agreed_up_to_as_many_as_are_asked_for() -> None:
    assert await proposed(PREDICTION, PREDICTION[:20]) == PREDICTION[20:36]
    assert await proposed(PREDICTION, PREDICTION[:20], most=4) == PREDICTION[20:24]
    assert await proposed(PREDICTION, PREDICTION[:96]) == PREDICTION[96:]


@pytest.mark.parametrize(
    ("output", "follows"),
    [
        ([*PREDICTION[:10], 7, *PREDICTION[11:13]], 13),
        ([*PREDICTION[:10], 7, 8, 9, *PREDICTION[10:12]], 12),
        ([*PREDICTION[:10], *PREDICTION[40:42]], 42),
        ([*PREDICTION[60:90], *PREDICTION[:2]], 2),
        ([7, 8, 9, *PREDICTION[:2]], 2),
    ],
    ids=["replaced", "inserted", "left out", "moved", "a preamble"],
)
async def test_the_place_is_found_again_behind_what_was(output: list[int], follows: int) -> None:
    assert await proposed(PREDICTION, output, most=3) == PREDICTION[follows : follows + 3]


async def test_of_places_that_look_alike_the_nearest_ahead_is_taken_unless_another_agrees_longer() -> None:
    prediction = [1, 2, 3, 50, 51, 1, 2, 4, 60, 61, 1, 2, 5, 70, 71]
    # Behind 50 something was replaced; 1 2 comes twice ahead, and once behind.
    assert await proposed(prediction, [1, 2, 3, 50, 9, 1, 2], most=2) == [4, 60]
    assert await proposed(prediction, [9, 9, 61, 1, 2], most=2) == [5, 70]


async def test_output_that_has_nothing_of_the_prediction_gets_no_drafts() -> None:
    assert await proposed(PREDICTION, [7, 8, 9]) == []
    assert await proposed(PREDICTION, PREDICTION) == [], "all of it is used up"


async def test_a_place_does_not_depend_on_how_rounds_divide_the_output() -> None:
    """Else the choice between drafters would depend on more than decided tokens, and bias what `rejection` emits."""
    coin = random.Random(3)
    prediction = [coin.randrange(6) for _ in range(200)]
    output = [coin.randrange(6) for _ in range(200)]
    stepwise, at_once = PredictionDrafter(prediction), make_context(PROMPT)
    for token in output:
        decide(at_once, [token])
        one, other = await stepwise.propose(at_once, 16), await PredictionDrafter(prediction).propose(at_once, 16)
        assert one.tokens == other.tokens


def policy(prediction: list[int]) -> PredictionPolicy:
    return PredictionPolicy(PredictionDrafter(prediction), 5, FixedPolicy(NgramDrafter(), 2))


async def test_where_the_output_leaves_the_prediction_the_other_drafter_proposes() -> None:
    """n-grams stand for it."""
    drafts = policy(PREDICTION)
    context = after(PREDICTION[:3])
    along = await drafts.propose(context)
    assert (along.report.drafter, along.tokens, along.report.num_asked) == ("prediction", PREDICTION[3:8], 5)
    decide(context, [900, 901])
    away = await drafts.propose(context)
    assert (away.report.drafter, away.tokens, away.report.num_asked) == ("ngram", PREDICTION[:2], 2)


async def test_the_prompts_own_round_has_no_drafts() -> None:
    proposal = await policy(PREDICTION).propose(make_context(PROMPT))
    assert (proposal.tokens, proposal.report.reason) == ([], "the prompt's round")


@pytest.mark.parametrize(("asked", "given"), [(3, 3), (Bounds(0, 4), 16), (EntropyAdaptive(Bounds(1, 2)), 16)], ids=str)
async def test_a_prediction_is_drafted_from_to_the_full_unless_the_request_fixes_k(
    asked: DraftLength, given: int
) -> None:
    prediction = [*range(500, 600)]
    context = make_context(PROMPT)
    speculation = SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=asked)
    request = replace(context.request, prediction=prediction, speculation=speculation)
    policy = Policies(Resources(), Experience(CostModel(ActiveGenerations(), ForwardTimes))).make(request)
    decide(context, prediction[:40])
    proposal = await policy.propose(context)
    assert (proposal.report.drafter, len(proposal)) == ("prediction", given)


async def test_how_far_the_output_agrees_says_how_likely_the_next_tokens_are() -> None:
    drafter, context = PredictionDrafter(PREDICTION), after(PREDICTION[:3])
    kinds = await drafter.candidates(context, 4)
    # Two to begin with and three that agreed: 5 to 8 tokens before each of the next, by powers of two.
    assert kinds == [3, 3, 3, 4]
    assert drafter.take_hits() == [(2, True), (2, True), (3, True)]
    decide(context, [900])
    await drafter.candidates(context, 4)
    assert drafter.take_hits() == [(3, False)]
