"""A request that kills coordinators is told apart from those that were only there, and is not sent to all of them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import orjson
import pytest

from gateway import router
from gateway.app import make_app
from gateway.config import GatewaySettings
from paceline.rpc.status import ACCEPTED
from paceline.v1 import generation_pb2
from tests.faults.proxy import Proxy
from tests.gateway.fake_coordinator import FakeCoordinator, serve

NUM_TOKENS = 40
ANSWER = "x" * NUM_TOKENS


class Mortal(FakeCoordinator):
    """Dies of prompts that name when: "start", "accepted" or a number of tokens. Its connections break, and it is back."""

    def __init__(self, village: "Village") -> None:
        super().__init__()
        self.village = village
        self.proxy = Proxy("")
        self.num_deaths = 0

    def die(self) -> None:
        self.num_deaths += 1
        self.village.struck.append(set(self.village.reading))
        self.proxy.cut()

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        self.asked.append(request)
        word, _, when = request.text.partition(" ")
        village, name = self.village, request.text
        village.log.append(name)
        village.reading.add(name)
        try:
            if (word, when) == ("deadly", "start"):
                await village.strike.wait()
                self.die()
                await asyncio.Event().wait()
            if word == "waiting" and when not in village.waited:
                village.waited.add(when)
                await asyncio.Event().wait()
            await context.send_initial_metadata((ACCEPTED,))
            village.reading.discard(name)
            if (word, when) == ("deadly", "accepted"):
                self.die()
                await asyncio.Event().wait()
            for number in range(NUM_TOKENS):
                if word == "deadly" and when == str(number):
                    self.die()
                    await asyncio.Event().wait()
                if word == "rolling" and number in village.kills:
                    village.kills.remove(number)
                    # What is under way would be lost with the connection.
                    while await village.metric("paceline_gateway_generated_tokens_total") < number:
                        await asyncio.sleep(0.01)
                    self.die()
                    await asyncio.Event().wait()
                if word == "hanging" and number in village.kills:
                    while await village.metric("paceline_gateway_generated_tokens_total") < number:
                        await asyncio.sleep(0.01)
                    village.kills.discard(number)
                    self.proxy.hold_answers()
                    village.hung.set()
                yield generation_pb2.GenerateResponse(token_ids=[1], text="x", text_lengths=[1])
            yield generation_pb2.GenerateResponse(
                finish=generation_pb2.Finish(reason=generation_pb2.FINISH_REASON_STOP)
            )
        finally:
            village.reading.discard(name)

    async def Tokenize(self, request: Any, context: Any) -> generation_pb2.TokenIds:
        self.asked.append(request)
        self.die()
        await asyncio.Event().wait()
        raise AssertionError


@dataclass
class Village:
    http: httpx2.AsyncClient = field(init=False)
    all: list[Mortal] = field(default_factory=list)
    # When those that are deadly at their start strike; who has waited once; at which tokens "rolling" is killed and "hanging"
    # hangs, and whether it does.
    strike: asyncio.Event = field(default_factory=asyncio.Event)
    waited: set[str] = field(default_factory=set)
    kills: set[int] = field(default_factory=set)
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    # Prompts in order of arrival, those that are being read, and those that were when one struck.
    log: list[str] = field(default_factory=list)
    reading: set[str] = field(default_factory=set)
    struck: list[set[str]] = field(default_factory=list)

    @property
    def num_deaths(self) -> int:
        return sum(each.num_deaths for each in self.all)

    async def ask(self, prompt: str) -> httpx2.Response:
        return await self.http.post("/v1/completions", json={"prompt": prompt, "max_tokens": NUM_TOKENS})

    async def metric(self, name: str) -> float:
        text = (await self.http.get("/metrics")).text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} "))


@pytest.fixture
def num_coordinators() -> int:
    return 6


@pytest.fixture
async def village(tmp_path: Path, num_coordinators: int) -> AsyncIterator[Village]:
    """Coordinators behind a gateway in this process."""
    found = Village()
    async with contextlib.AsyncExitStack() as stack:
        for number in range(num_coordinators):
            mortal = Mortal(found)
            mortal.proxy.upstream = f"unix:{tmp_path}/{number}.sock"
            server = await serve(mortal, mortal.proxy.upstream)
            stack.push_async_callback(server.stop, 0)
            await mortal.proxy.start()
            stack.push_async_callback(mortal.proxy.stop)
            found.all.append(mortal)
        app = make_app(GatewaySettings(coordinators=",".join(each.proxy.address for each in found.all)))
        await stack.enter_async_context(app.router.lifespan_context(app))
        transport = httpx2.ASGITransport(app)
        found.http = await stack.enter_async_context(
            httpx2.AsyncClient(transport=transport, base_url="http://localhost", timeout=60)
        )
        yield found


@pytest.mark.parametrize(("when", "num_deaths"), [("start", 2), ("accepted", 3), ("1", 3), ("39", 5)])
async def test_a_deadly_request_ends_after_few_deaths(village: Village, when: str, num_deaths: int) -> None:
    """The more it has done before it killed for the first time, the more is it believed."""
    village.strike.set()
    refused = await village.ask(f"deadly {when}")
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "fatal_request")
    assert village.num_deaths <= num_deaths
    assert await village.metric("paceline_gateway_fatal_requests_total") == 1
    assert (await village.ask("another")).json()["choices"][0]["text"] == ANSWER


async def test_one_prompt_is_refused_for_all_of_its_request(village: Village) -> None:
    village.strike.set()
    refused = await village.http.post("/v1/completions", json={"prompt": ["deadly start"] * 20, "max_tokens": 4})
    assert refused.status_code == 422
    assert village.log.count("deadly start") <= 20 + 1


async def test_a_deadly_call_that_generates_nothing_is_refused(village: Village) -> None:
    refused = await village.http.post("/tokenize", json={"prompt": "t1"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (422, "fatal_request")
    assert village.num_deaths == 2


@pytest.mark.parametrize("num_coordinators", [1])
async def test_those_who_were_open_at_a_death_without_a_token_are_tried_one_at_a_time(village: Village) -> None:
    asking = [asyncio.create_task(village.ask(f"waiting {number}")) for number in range(8)]
    asking.insert(4, asyncio.create_task(village.ask("deadly start")))
    async with asyncio.timeout(30):
        while len(village.log) < len(asking):
            await asyncio.sleep(0.01)
    village.strike.set()
    answers = [await each for each in asking]
    assert answers.pop(4).status_code == 422
    assert [each.json()["choices"][0]["text"] for each in answers] == [ANSWER] * 8
    assert village.num_deaths == 2
    # Nobody was there without a token when it struck again.
    assert [len(each) for each in village.struck] == [9, 1]


async def test_rolling_kills_end_no_long_answer(village: Village) -> None:
    village.kills = {1, 2, 20, 38}
    answered = await village.ask("rolling")
    assert answered.json()["choices"][0]["text"] == ANSWER
    assert village.num_deaths == 4


async def test_answers_of_a_coordinator_that_hangs_go_on_at_another(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHECK_INTERVAL_S", "SILENT_S"):
        monkeypatch.setattr(router, name, 0.05)
    monkeypatch.setattr(router, "STALL_S", 0.5)
    streaming = asyncio.create_task(village.ask("waiting 0"))
    async with asyncio.timeout(30):
        while not village.log:
            await asyncio.sleep(0.01)
        hung = next(each for each in village.all if each.asked)
        hung.proxy.hold_answers()
        assert (await streaming).json()["choices"][0]["text"] == ANSWER
        assert len(hung.asked) == 1
        # Others come there no more, until it answers.
        for number in range(12):
            assert orjson.loads((await village.ask(f"p{number}")).content)["choices"][0]["text"] == ANSWER
        assert len(hung.asked) == 1
        hung.proxy.release()
        while len(hung.asked) == 1:
            await village.ask(f"q{len(village.log)}")


def shorten(monkeypatch: pytest.MonkeyPatch, stall_s: float) -> None:
    for name in ("CHECK_INTERVAL_S", "SILENT_S"):
        monkeypatch.setattr(router, name, 0.01)
    monkeypatch.setattr(router, "STALL_S", stall_s)


@pytest.mark.parametrize("num_coordinators", [1])
async def test_a_coordinator_that_hangs_for_long_dies_once(
    village: Village, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What was tried meanwhile had no part in it."""
    shorten(monkeypatch, 0.2)
    village.kills = {1, 3}
    asking = asyncio.create_task(village.ask("hanging"))
    async with asyncio.timeout(30):
        for _ in range(2):
            await village.hung.wait()
            village.hung.clear()
            caplog.clear()
            while caplog.text.count("has not answered for") < 3:
                await asyncio.sleep(0.01)
            village.all[0].proxy.release()
        answered = await asking
    assert answered.json()["choices"][0]["text"] == ANSWER


def pause(seconds: float) -> None:
    """As if the machine were paused: nobody here does anything."""
    time.sleep(seconds)


@pytest.mark.parametrize("num_coordinators", [1])
async def test_a_gateway_that_was_stopped_takes_no_coordinator_for_dead(
    village: Village, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(router, "CHECK_INTERVAL_S", 0.0)
    monkeypatch.setattr(router, "STALL_S", 1.0)
    asking = asyncio.create_task(village.ask("waiting 0"))
    async with asyncio.timeout(30):
        while not village.log:
            await asyncio.sleep(0.01)
        for _ in range(3):
            pause(1.1)
            await village.ask("another")
    assert village.log.count("waiting 0") == 1
    asking.cancel()
