"""No format and no tool of a client ends a service, is answered by a 5xx or changes what others get."""

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.hostile.grammars import KILLERS, Deployment, attack, bodies, started, watched

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    folder: Path = tmp_path_factory.mktemp("hostile")
    with started(folder) as made:
        yield made


async def test_what_ended_services_is_refused_by_every_api(deployment: Deployment) -> None:
    async def ask(http: httpx2.AsyncClient, seed: int, name: str) -> tuple[int, str]:
        path, body = bodies(KILLERS[name], random.Random(seed))
        answer = await http.post(deployment.url + path, json=body)
        return answer.status_code, answer.text

    async with watched(deployment), httpx2.AsyncClient(timeout=120, verify=False) as http:
        answers = await asyncio.gather(*(ask(http, seed, name) for seed in range(3) for name in KILLERS))
    for status, text in answers:
        assert status == 400, text
        assert "exhausts the compiler's stack" in text or "takes more than" in text
    assert deployment.violations == []


async def test_a_tool_that_ended_services_is_refused(deployment: Deployment) -> None:
    tools = [{"name": "f", "parameters": {"properties": {"a": {"const": -(2**63)}}}}]
    async with watched(deployment), httpx2.AsyncClient(timeout=120, verify=False) as http:
        for seed in range(6):
            path, body = bodies({"tools": tools}, random.Random(seed))
            answer = await http.post(deployment.url + path, json=body)
            assert answer.status_code == 400, answer.text
            assert "no number that a double holds" in answer.text
    assert deployment.violations == []


async def test_random_formats_and_tools_concern_nobody_else(deployment: Deployment) -> None:
    await attack(deployment, 40, seed=7)
    assert deployment.violations == []
    assert sum(deployment.found.values()) == 40
