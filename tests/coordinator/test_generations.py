"""A custom drafter that raises ends its own generation, which the target then no longer counts."""

import hashlib
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
from coordinator.remote.server_load import ForwardTimes
from coordinator.request import requests_of_choices
from coordinator.stats import GenerationStats
from paceline.errors import Unavailable
from paceline.speculation_params import Drafter, Rule, SpeculationParams
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
    assert (pool.endpoints[0].num_placed, pool.endpoints[0].num_reserved) == (0, 0)


@pytest.mark.parametrize("method", ["truncate", "release"])
async def test_a_drafter_that_raises_at_the_end_keeps_no_target(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drafter, target = NoDrafter(), Mock(verify=AsyncMock(side_effect=Unavailable("away")))
    monkeypatch.setattr(drafter, method, Mock(side_effect=RuntimeError("theirs")))
    with pytest.raises(RuntimeError, match="theirs"):
        await anext(generate(make_context([1, 2]), FixedPolicy(drafter, 2), target, GenerationStats()))
    target.release.assert_called_once_with(())


def test_a_prompt_is_read_once_for_the_noise_of_all_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    digest = Mock(wraps=hashlib.blake2b)
    monkeypatch.setattr("coordinator.request.hashlib.blake2b", digest)
    request = make_context([1, 2]).request
    sampling = replace(request.sampling, temperature=1.0, seed=5, n=8)
    speculation = SpeculationParams(rule=Rule.REJECTION, num_speculative_tokens=4)
    samples = requests_of_choices(replace(request, sampling=sampling, speculation=speculation))
    assert len({each.noise_seed for each in samples}) == 8
    digest.assert_called_once()
