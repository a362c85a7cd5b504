"""The client for threads: how it is closed while others use it, and what they get."""

import contextlib
import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.client import Client
from paceline.errors import Unavailable
from paceline.v1 import generation_pb2, generation_pb2_grpc

TIMEOUT_S = 60.0
TRIES = 6


class NeverDone(generation_pb2_grpc.GenerationServicer):
    """A coordinator whose answers begin, and do not end."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)

    def Generate(self, request: Any, context: Any) -> Iterator[generation_pb2.GenerateResponse]:
        gone = threading.Event()
        context.add_callback(gone.set)
        yield generation_pb2.GenerateResponse(text="t1 ")
        self.began.release()
        gone.wait(TIMEOUT_S)


@pytest.fixture
def never_done(tmp_path: Path) -> Iterator[tuple[str, NeverDone]]:
    address, servicer = f"unix:{tmp_path}/coordinator.sock", NeverDone()
    server = grpc.server(futures.ThreadPoolExecutor(2 * TRIES))
    generation_pb2_grpc.add_GenerationServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    yield address, servicer
    server.stop(0).wait()


CALLS: dict[str, Callable[[Client], object]] = {
    "stream": lambda client: list(client.stream("a", raw=True)),
    "complete": lambda client: client.complete("a", raw=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_who_waits_when_another_thread_closes_is_told(name: str, never_done: tuple[str, NeverDone]) -> None:
    address, servicer = never_done
    with futures.ThreadPoolExecutor(TRIES) as threads:
        for _ in range(TRIES):
            client = Client(address)
            waiting = threads.submit(CALLS[name], client)
            assert servicer.began.acquire(timeout=TIMEOUT_S)
            client.close()
            with pytest.raises(Unavailable, match="the client is closed"):
                waiting.result(TIMEOUT_S)


def test_a_second_close_does_nothing_and_a_call_behind_it_is_refused(never_done: tuple[str, NeverDone]) -> None:
    client = Client(never_done[0])
    client.close()
    client.close()
    with warnings.catch_warnings():
        # A warning about a coroutine that nobody awaits.
        warnings.simplefilter("error")
        for call in CALLS.values():
            with pytest.raises(Unavailable, match="the client is closed"):
                call(client)
        gc.collect()


def test_threads_that_close_at_once_all_return(never_done: tuple[str, NeverDone]) -> None:
    client = Client(never_done[0])
    stream = client.stream("a", raw=True)
    next(stream)
    with futures.ThreadPoolExecutor(4) as threads:
        closing = [threads.submit(client.close) for _ in range(4)]
        assert [each.result(TIMEOUT_S) for each in closing] == [None] * 4


def test_a_stream_is_dropped_behind_its_client_without_a_word(
    never_done: tuple[str, NeverDone], capfd: pytest.CaptureFixture[str]
) -> None:
    with Client(never_done[0]) as client:
        left, asked = client.stream("a", raw=True), client.stream("a", raw=True)
        next(left), next(asked)
    with pytest.raises(Unavailable, match="the client is closed"):
        next(asked)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del left, asked
        gc.collect()
    assert [str(each.message) for each in caught if "await" in str(each.message)] == []
    assert capfd.readouterr().err == ""


class Abandoned:
    """A stream in a cycle, which only the collector ends."""

    def __init__(self, client: Client) -> None:
        self.pieces, self.itself = client.stream("a", raw=True), self
        next(self.pieces)


@pytest.mark.parametrize("place", ["the loop's own thread", "a thread that hands work over"])
def test_the_collector_may_end_an_abandoned_stream_anywhere(place: str, never_done: tuple[str, NeverDone]) -> None:
    client = Client(never_done[0])
    loop, collected = client._loop, threading.Event()

    def collect() -> None:
        with loop._lock if place == "a thread that hands work over" else contextlib.nullcontext():
            gc.collect()
        collected.set()

    gc.disable()
    try:
        Abandoned(client)
        if place == "the loop's own thread":
            loop._loop.call_soon_threadsafe(collect)
        else:
            threading.Thread(target=collect, daemon=True).start()
        assert collected.wait(TIMEOUT_S / 6), "it waits for itself"
    finally:
        gc.enable()
    client.close()
