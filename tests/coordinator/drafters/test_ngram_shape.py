"""What an operator may say of n-grams: checked, and given to every n-gram drafter that a coordinator makes."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.admission import ActiveGenerations
from coordinator.config import CoordinatorSettings
from coordinator.context import Context
from coordinator.drafters.drafter import Resources
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape, parse_orders
from coordinator.policy.costs import CostModel
from coordinator.policy.experience import Experience
from coordinator.policy.policies import Policies
from coordinator.remote.pool import Pool
from coordinator.remote.server_load import ForwardTimes
from paceline.errors import InvalidArgument
from paceline.rpc.address_source import AddressSource
from paceline.settings import make_settings
from paceline.speculation_params import Bounds, Drafter, SpeculationParams
from tests.coordinator.contexts import decide, make_context
from tests.coordinator.test_remote_model import FakeDraft, fill_with, linked

# After 2 3 came 4, after 3 alone 5 came more often; after 1 2 3 came 6.
PROMPT = [1, 2, 3, 6, 2, 3, 4, 2, 3, 4, 3, 5, 3, 5, 3, 5, 1, 2]
SHAPES = {(4, 3, 2): 6, (3,): 4, (2,): 5}


def test_orders_may_be_given_in_any_order() -> None:
    settings = make_settings(CoordinatorSettings, {"ngram_orders": "2, 8,3", "ngram_window": 8}, {})
    assert settings.ngram_shape == NgramShape(8, (8, 3, 2))
    assert settings.ngram_shape.context_lengths == (7, 2, 1)
    assert CoordinatorSettings().ngram_shape == DEFAULT_SHAPE


@pytest.mark.parametrize(
    ("given", "parts"),
    [
        *(
            ({"ngram_orders": orders}, [f"ngram_orders is {orders!r}: it must be distinct whole numbers in [2, 8]"])
            for orders in ("", "1", "9,2", "4,4", "4;3", "-3", "4,", "4.0", "9" * 30)
        ),
        ({"ngram_window": 3}, ["ngram_window is 3: it must be in [4 (the longest order), 131072]"]),
        ({"ngram_window": 7, "ngram_orders": "2,8"}, ["ngram_window is 7: it must be in [8 "]),
        ({"ngram_window": 131073}, ["ngram_window", "131072]"]),
        ({"ngram_window": "much"}, ["ngram_window", "'much'"]),
    ],
)
def test_a_bad_shape_is_named_with_its_range(given: dict, parts: list[str]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make_settings(CoordinatorSettings, given, {})
    assert [part for part in parts if part not in str(caught.value)] == []


@pytest.mark.parametrize("fields", [(4096, ()), (4096, (2, 2)), (4096, (1,)), (4096, (True,)), (2, (3,)), (2.5, (2,))])
def test_no_shape_can_be_made_that_is_out_of_range(fields: tuple) -> None:
    with pytest.raises(InvalidArgument, match=r"^(orders|window_tokens) is "):
        NgramShape(*fields)
    with pytest.raises(InvalidArgument, match=r"^orders is 'x'"):
        parse_orders("x")


def after_a_token(drafter: Drafter, length: int | Bounds) -> Context:
    """Behind 1 2 3, of which the 3 was generated."""
    context = make_context(PROMPT)
    speculation = SpeculationParams(drafter=drafter, num_speculative_tokens=length)
    context.request = replace(context.request, speculation=speculation)
    decide(context, [3])
    return context


@pytest.mark.parametrize("orders", SHAPES)
@pytest.mark.parametrize(
    ("drafter", "length"),
    [
        (Drafter.HYBRID, 2),
        *itertools.product((Drafter.NGRAM, Drafter.MODEL, Drafter.HIERARCHICAL), (2, Bounds(2, 2))),
    ],
    ids=str,
)
@pytest.mark.parametrize("has_draft", [False, True], ids=["no draft", "draft away"])
async def test_all_ngrams_have_the_orders_asked_for(
    drafter: Drafter, length: int | Bounds, has_draft: bool, orders: tuple[int, ...]
) -> None:
    pool = Pool("draft", AddressSource("draft", "127.0.0.1:1"), lambda address, model_info: None)
    await pool.start()
    context = after_a_token(drafter, length)
    resources = Resources(pool if has_draft else None, ngram_shape=NgramShape(orders=orders))
    policies = Policies(resources, Experience(CostModel(ActiveGenerations(), ForwardTimes)))
    proposal = await policies.make(context.request).propose(context)
    await pool.stop()
    assert (proposal.report.drafter, proposal.tokens[:1]) == ("ngram", [SHAPES[orders]])


@pytest.mark.parametrize("orders", [*SHAPES, (8, 7, 6)])
async def test_guesses_have_the_orders_asked_for(tmp_path: Path, orders: tuple[int, ...]) -> None:
    context = after_a_token(Drafter.HIERARCHICAL, 2)
    if orders[0] == 8:
        # A match of seven tokens: the ones that the prompt begins with.
        decide(context, PROMPT[3:8])
    fake = FakeDraft(fill_with(tokens=[9, 9]))
    async with linked(fake, tmp_path) as pool:
        resources = Resources(pool, ngram_shape=NgramShape(orders=orders))
        await (
            Policies(resources, Experience(CostModel(ActiveGenerations(), ForwardTimes)))
            .make(context.request)
            .propose(context)
        )
    assert [list(asked.guess_tokens) for asked in fake.asked] == [[SHAPES.get(orders, PROMPT[8])]]
