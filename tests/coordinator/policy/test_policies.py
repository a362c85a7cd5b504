"""Which named drafts are refused."""

from typing import Any, cast

import pytest

from coordinator.admission import ActiveGenerations
from coordinator.drafters.drafter import Resources
from coordinator.policy.costs import CostModel
from coordinator.policy.experience import Experience
from coordinator.policy.policies import Policies
from coordinator.remote.server_load import ForwardTimes
from paceline.errors import InvalidArgument
from paceline.speculation_params import SpeculationParams
from tests.coordinator.test_pool import endpoint, pool_of

# What each server has, `refused` or nothing yet, and what is said of a model that none is known to have.
POOLS: dict[str, tuple[list[str], str]] = {
    "all are known": (["a", "b"], "draft_model is 'other'; it must be one of a, b"),
    "one was refused": (["a", "refused"], "draft_model is 'other'; it must be one of a"),
    "one was not reached": (["a", ""], ""),
    "none was reached": (["", ""], ""),
    "none is listed": ([], ""),
}


@pytest.mark.parametrize("name", POOLS)
def test_a_named_draft_is_refused_only_if_no_server_can_have_it(name: str) -> None:
    models, refusal = POOLS[name]
    pool = cast(Any, pool_of())
    pool.endpoints = [endpoint(f"{at}:1", model.removeprefix("refused")) for at, model in enumerate(models)]
    for each, model in zip(pool.endpoints, models, strict=True):
        each.link.is_refused = model == "refused"
    policies = Policies(Resources(pool), Experience(CostModel(ActiveGenerations(), ForwardTimes)))
    said = ""
    try:
        policies.check(SpeculationParams(draft_model="other"))
    except InvalidArgument as error:
        said = str(error)
    assert said == refusal
    for model in pool.models:
        policies.check(SpeculationParams(draft_model=model))
