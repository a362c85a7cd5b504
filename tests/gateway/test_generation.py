"""Rounds as the gateway passes them on."""

import itertools
from collections.abc import AsyncGenerator, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import httpx2
import pytest

from gateway import resumed_generation
from gateway.resumed_generation import as_rounds
from paceline.errors import Unavailable
from paceline.results import Chunk, TokenLogprobs
from tests.gateway.fake_coordinator import FakeCoordinator


async def test_what_comes_ahead_of_a_round_is_a_part_of_it() -> None:
    """So a client has a long prompt's log-probabilities and the first token together, or, after a fault, neither."""
    scored = [TokenLogprobs(-float(i), [], []) for i in range(5)]

    async def chunks() -> AsyncGenerator[Chunk, None]:
        yield Chunk("", [], "", prompt_logprobs=scored[:2])
        yield Chunk("", [], "", prompt_logprobs=scored[2:4])
        yield Chunk("a", [7], "T", [1], prompt_logprobs=scored[4:])
        yield Chunk("b", [8], "T", [1])
        yield Chunk("", [], "")

    found = [chunk async for chunk in as_rounds(chunks(), scores_prompt=True)]
    assert found == [Chunk("a", [7], "T", [1], prompt_logprobs=scored), Chunk("b", [8], "T", [1]), Chunk("", [], "")]


async def test_each_choice_begins_with_what_the_first_one_says_of_the_prompt() -> None:
    scored = [TokenLogprobs(-float(i), [], []) for i in range(3)]

    async def chunks() -> AsyncGenerator[Chunk, None]:
        yield Chunk("a", [1], "T", [1], index=1)
        yield Chunk("", [], "", prompt_logprobs=scored[:2])
        yield Chunk("b", [2], "T", [1], index=1)
        yield Chunk("c", [3], "T", [1], prompt_logprobs=scored[2:])
        yield Chunk("d", [4], "T", [1], index=2)
        yield Chunk("e", [5], "T", [1], index=1)
        yield Chunk("f", [6], "T", [1])

    found = [chunk async for chunk in as_rounds(chunks(), scores_prompt=True)]
    assert [(chunk.text, chunk.index) for chunk in found] == [
        ("c", 0),
        ("a", 1),
        ("b", 1),
        ("d", 2),
        ("e", 1),
        ("f", 0),
    ]
    assert [chunk.prompt_logprobs for chunk in found] == [scored, scored, [], scored, [], []]


class FailingOnce(Sequence[Any]):
    """A coordinator's rounds, after which it is gone the first time."""

    def __init__(self, coordinator: FakeCoordinator) -> None:
        self._coordinator, self._rounds = coordinator, coordinator.rounds

    def __iter__(self) -> Iterator[Any]:
        yield from self._rounds
        self._coordinator.error = Unavailable("gone") if len(self._coordinator.asked) == 1 else None

    def __len__(self) -> int:
        return len(self._rounds)

    def __getitem__(self, index: Any) -> Any:
        return self._rounds[index]


async def test_a_repeated_request_tells_the_template_the_same_time(
    coordinator: FakeCoordinator, fake_http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one that is resumed after midnight has another prompt."""
    midnights = (datetime(2026, 1, 31) + timedelta(days) for days in itertools.count())

    class Clock(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return next(midnights)

    monkeypatch.setattr(resumed_generation, "datetime", Clock)
    coordinator.rounds = FailingOnce(coordinator)
    response = await fake_http.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "Hi"}]})
    assert response.status_code == 200
    assert [each.chat.template_time for each in coordinator.asked] == ["2026-01-31T00:00:00"] * 2
    assert len({each.sampling.seed for each in coordinator.asked}) == 1


@pytest.mark.parametrize(("rule", "predicted"), [("match", [1, 2]), ("rejection", [])])
async def test_what_a_client_has_is_predicted_unless_that_would_change_the_noise(
    coordinator: FakeCoordinator, fake_http: httpx2.AsyncClient, rule: str, predicted: list[int]
) -> None:
    coordinator.rounds = FailingOnce(coordinator)
    speculation = {"rule": rule, "drafter": "model", "num_speculative_tokens": 3}
    body = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 1, "speculation": speculation}
    assert (await fake_http.post("/v1/chat/completions", json=body)).status_code == 200
    assert [list(each.prediction_token_ids.ids) for each in coordinator.asked] == [[], predicted]
