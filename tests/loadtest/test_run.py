"""What goes over the wire, and when: against a server that writes down who asks."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from paceline.client import AsyncClient
from paceline.loadtest.load_generator import Extent, Runner, Workload
from paceline.loadtest.metrics import Record
from paceline.loadtest.workload import ClosedLoop, Load, OpenLoop, Variant
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2, generation_pb2_grpc

VARIANTS = [Variant("off", SpeculationParams(enabled=False)), Variant("default")]
ENDLESS = math.inf


class Notebook(generation_pb2_grpc.GenerationServicer):
    """Answers with one token, or as a prompt of these words asks; writes down every request."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.running = self.most_running = 0

    async def Generate(self, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        self.asked.append(request)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        # Long enough for all that come at once to be seen at once.
        await asyncio.sleep(0.01)
        try:
            match request.text:
                case "internal":
                    await context.abort(grpc.StatusCode.INTERNAL, "a bug")
                case "full":
                    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "no place")
                case "hang":
                    await asyncio.sleep(60)
                case "end":
                    return
            yield generation_pb2.GenerateResponse(token_ids=[5], origins=[generation_pb2.ORIGIN_TARGET])
            finish = generation_pb2.Finish(reason=generation_pb2.FINISH_REASON_LENGTH, completion_tokens=1)
            yield generation_pb2.GenerateResponse(finish=finish)
        finally:
            self.running -= 1


@contextlib.asynccontextmanager
async def serving(folder: Path, name: str = "notebook") -> AsyncIterator[tuple[Notebook, AsyncClient]]:
    notebook, server = Notebook(), grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(notebook, server)
    address = f"unix:{folder}/{name}.sock"
    server.add_insecure_port(address)
    await server.start()
    try:
        async with AsyncClient(address) as client:
            yield notebook, client
    finally:
        await server.stop(None)


def asking(*texts: str, timeout_s: float = 30.0) -> Workload:
    return Workload(lambda index, name: texts[index % len(texts)], SamplingParams(seed=7), True, timeout_s)


def is_off(request: Any) -> bool:
    return request.HasField("speculation") and not request.speculation.enabled


async def test_variants_take_turns_and_get_the_same_requests(tmp_path: Path) -> None:
    done: list[Record] = []
    async with serving(tmp_path) as (notebook, client):
        runner = Runner([client], asking("hi"), done.append)
        runs = await runner.run(ClosedLoop(2), VARIANTS, Extent(20, ENDLESS, warmup=3))
    warm, counted = notebook.asked[:6], notebook.asked[6:]
    assert [is_off(request) for request in warm] == [True] * 3 + [False] * 3
    # Slices of 4 times 2 requests, the last ones of 4; the second block begins with the second variant.
    turns = [True] * 8 + [False] * 16 + [True] * 8 + [True] * 4 + [False] * 4
    assert [is_off(request) for request in counted] == turns
    for off in (True, False):
        seeds = [request.sampling.seed for request in counted if is_off(request) is off]
        assert sorted(seeds) == list(range(7, 27))
    assert {name: len(run.records) for name, run in runs.items()} == {"off": 20, "default": 20}
    assert all(record.is_ok and record.tokens == 1 for run in runs.values() for record in run.records)
    assert len(done) == 46


async def test_a_closed_loop_keeps_so_many_in_flight(tmp_path: Path) -> None:
    async with serving(tmp_path) as (notebook, client):
        await Runner([client], asking("hi"), lambda record: None).run(
            ClosedLoop(5), VARIANTS[:1], Extent(30, ENDLESS, 9)
        )
    assert notebook.most_running == 5
    assert len(notebook.asked) == 39


async def test_an_open_loop_does_not_wait_for_answers(tmp_path: Path) -> None:
    async with serving(tmp_path) as (notebook, client):
        workload = asking("hang", timeout_s=0.5)
        runs = await Runner([client], workload, lambda record: None).run(
            OpenLoop(1000), VARIANTS[:1], Extent(12, ENDLESS, 0)
        )
    assert notebook.most_running == 12
    assert [record.index for record in runs["off"].records] == list(range(12))


async def test_addresses_are_asked_in_turn(tmp_path: Path) -> None:
    async with serving(tmp_path, "a") as (first, a), serving(tmp_path, "b") as (second, b):
        await Runner([a, b], asking("hi"), lambda record: None).run(ClosedLoop(3), VARIANTS[:1], Extent(10, ENDLESS, 0))
    assert sorted(request.sampling.seed for request in first.asked) == [7, 9, 11, 13, 15]
    assert sorted(request.sampling.seed for request in second.asked) == [8, 10, 12, 14, 16]


async def test_the_next_load_goes_on_with_other_requests(tmp_path: Path) -> None:
    async with serving(tmp_path) as (notebook, client):
        runner = Runner([client], asking("hi"), lambda record: None)
        for load in (ClosedLoop(2), OpenLoop(500)):
            await runner.run(load, VARIANTS[:1], Extent(4, ENDLESS, 0))
    assert sorted(request.sampling.seed for request in notebook.asked) == list(range(7, 15))


@pytest.mark.parametrize("load", [ClosedLoop(2), OpenLoop(200)])
async def test_when_time_is_up_no_request_begins(load: Load, tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        runner = Runner([client], asking("hi"), lambda record: None)
        runs = await runner.run(load, VARIANTS[:1], Extent(2**31, 0.1, 0))
    assert 0 < len(runs["off"].records) < 1000


async def test_when_time_is_up_the_block_is_finished(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, client):
        runner = Runner([client], asking("hi"), lambda record: None)
        runs = await runner.run(ClosedLoop(2), VARIANTS, Extent(2**31, 0.001, 0))
    assert [len(run.records) for run in runs.values()] == [ClosedLoop(2).requests_per_slice] * 2


async def test_each_failure_has_its_own_status_code_and_the_rest_goes_on(tmp_path: Path) -> None:
    texts = ("hi", "internal", "full", "hang", "end")
    async with serving(tmp_path) as (_, client):
        runner = Runner([client], asking(*texts, timeout_s=0.5), lambda record: None)
        runs = await runner.run(ClosedLoop(1), VARIANTS[:1], Extent(len(texts), ENDLESS, 0))
    said = [record.failure and (record.failure.status, record.failure.message) for record in runs["off"].records]
    assert said[:3] == [None, ("INTERNAL", "a bug"), ("RESOURCE_EXHAUSTED", "no place")]
    assert [failure and failure[0] for failure in said[3:]] == ["TIMED_OUT", "INCOMPLETE"]
