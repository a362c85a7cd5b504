"""A custom drafter that raises ends its own generation, which the target then no longer counts."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock, Mock

import pytest

from coordinator.admission import ActiveGenerations
from coordinator.decoding import generate
from coordinator.drafters.drafter import NoDrafter, Resources
from coordinator.generations import Generations
from coordinator.policy.costs import CostModel
from coordinator.policy.experience import Experience
from coordinator.policy.policies import Policies
from coordinator.policy.policy import FixedPolicy
from coordinator.remote.load import ForwardTimes
from coordinator.stats import GenerationStats
from paceline.errors import Unavailable
from paceline.speculation import Drafter, SpeculationParams
from tests.coordinator.contexts import make_context
from tests.coordinator.test_pool import pool_of


def test_a_factory_that_raises_leaves_no_place() -> None:
    pool, unused = pool_of("a"), cast(Any, None)
    resources = Resources(custom=Mock(side_effect=RuntimeError("theirs")))
    policies = Policies(resources, Experience(CostModel(ActiveGenerations(), ForwardTimes)))
    generations = Generations(pool, "", unused, unused, policies, 1.0, unused, unused, unused)
    request = replace(make_context([1, 2]).request, speculation=SpeculationParams(drafter=Drafter.CUSTOM))
    choice: Any = SimpleNamespace(context=SimpleNamespace(request=request, tokens=[1, 2]), stats=GenerationStats())
    with pytest.raises(RuntimeError, match="theirs"):
        generations._generate(choice)
    assert (pool.members[0].num_placed, pool.members[0].num_reserved) == (0, 0)


@pytest.mark.parametrize("method", ["truncate", "release"])
async def test_a_drafter_that_raises_at_the_end_keeps_no_target(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, target = NoDrafter(), Mock(verify=AsyncMock(side_effect=Unavailable("away")))
    monkeypatch.setattr(drafter, method, Mock(side_effect=RuntimeError("theirs")))
    with pytest.raises(RuntimeError, match="theirs"):
        await anext(generate(make_context([1, 2]), FixedPolicy(drafter, 2), target, GenerationStats()))
    target.release.assert_called_once_with()
