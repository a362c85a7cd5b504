"""Who gets a place: in order of arrival, as far as places and the cache's room go."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from coordinator.admission import Admission
from paceline.errors import ResourceExhausted


class Crowd:
    """Generations that enter one after the other and stay until they are told to leave."""

    def __init__(self, admission: Admission) -> None:
        self.inside: list[str] = []
        self._admission = admission
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def enter(self, name: str, num_tokens: int) -> None:
        self._ends[name] = asyncio.Event()
        self._tasks[name] = asyncio.create_task(self._stay(name, num_tokens))
        await settle()

    async def leave(self, name: str) -> None:
        self._ends[name].set()
        await self._tasks[name]
        await settle()

    async def give_up(self, names: str) -> None:
        """All in one turn of the event loop."""
        for name in names:
            self._tasks[name].cancel()
        await settle()

    async def _stay(self, name: str, num_tokens: int) -> None:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._admission.slot(num_tokens))
            self.inside.append(name)
            stack.callback(self.inside.remove, name)
            await self._ends[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_many_run_as_there_are_places() -> None:
    crowd = Crowd(Admission(max_num_seqs=2, max_queue_size=9, cache_tokens=lambda: 1000))
    for name in "abc":
        await crowd.enter(name, 10)
    assert crowd.inside == ["a", "b"]
    await crowd.leave("a")
    assert crowd.inside == ["b", "c"]


async def test_as_many_run_as_the_cache_has_room_for() -> None:
    crowd = Crowd(Admission(max_num_seqs=9, max_queue_size=9, cache_tokens=lambda: 100))
    for name, num_tokens in (("a", 60), ("b", 40), ("c", 50), ("d", 10)):
        await crowd.enter(name, num_tokens)
    assert crowd.inside == ["a", "b"], "d is small enough, but c was here first"
    await crowd.leave("b")
    assert crowd.inside == ["a"]
    await crowd.leave("a")
    assert crowd.inside == ["c", "d"]


async def test_who_needs_more_than_there_is_runs_alone() -> None:
    admission = Admission(max_num_seqs=9, max_queue_size=9, cache_tokens=lambda: 100)
    crowd = Crowd(admission)
    await crowd.enter("a", 10)
    await crowd.enter("giant", 500)
    await crowd.enter("b", 10)
    assert crowd.inside == ["a"]
    await crowd.leave("a")
    assert crowd.inside == ["giant"]
    await crowd.leave("giant")
    assert crowd.inside == ["b"]


async def test_who_gives_up_waiting_holds_nobody_up() -> None:
    admission = Admission(max_num_seqs=9, max_queue_size=9, cache_tokens=lambda: 100)
    crowd = Crowd(admission)
    for name, num_tokens in (("a", 60), ("b", 90), ("c", 30)):
        await crowd.enter(name, num_tokens)
    assert crowd.inside == ["a"]
    await crowd.give_up("b")
    assert crowd.inside == ["a", "c"]
    await crowd.leave("a")
    await crowd.leave("c")
    assert admission.running == 0


@pytest.mark.parametrize("names", ["abcdef", "fedcba", "acebdf", "bcdef", "abef"])
async def test_any_number_may_give_up_at_once(names: str) -> None:
    """As when a proxy dies: a place that comes free is not given to those who are going too."""
    admission = Admission(max_num_seqs=2, max_queue_size=9, cache_tokens=lambda: 100)
    crowd = Crowd(admission)
    for name in "abcdef":
        await crowd.enter(name, 10)
    await crowd.give_up(names)
    assert len(crowd.inside) == admission.running == min(2, 6 - len(names))
    await crowd.give_up("abcdef")
    for name in "xyz":
        await crowd.enter(name, 50)
    assert crowd.inside == ["x", "y"], "all places and all of the cache are free again"


async def test_a_full_queue_refuses_at_once_with_a_hint() -> None:
    crowd = Crowd(Admission(max_num_seqs=1, max_queue_size=1, cache_tokens=lambda: 100))
    await crowd.enter("a", 10)
    await crowd.enter("b", 10)
    with pytest.raises(ResourceExhausted, match="1 generations are running and 1 waiting") as refused:
        async with crowd._admission.slot(10):
            pass
    assert refused.value.retry_after_s


async def test_those_who_wait_are_admitted_when_the_capacity_has_grown() -> None:
    capacity = 100
    admission = Admission(max_num_seqs=9, max_queue_size=9, cache_tokens=lambda: capacity)
    crowd = Crowd(admission)
    for name in "abc":
        await crowd.enter(name, 60)
    assert crowd.inside == ["a"]
    capacity = 130
    await settle()
    assert crowd.inside == ["a"]
    admission.admit_waiting()
    await settle()
    assert crowd.inside == ["a", "b"]
