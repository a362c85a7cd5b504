"""Who gets a place: in order of arrival, as far as places and the cache's room go."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from coordinator.admission import Admission
from coordinator.remote.load import ServerLoad
from paceline.errors import ResourceExhausted
from tests.coordinator.pools import place, pool_of


class Crowd:
    """Generations that enter one after the other and stay until they are told to leave."""

    def __init__(self, *sizes: int, max_num_seqs: int = 9, max_queue_size: int = 9) -> None:
        """`sizes`: tokens of the targets' caches."""
        self.pool = pool_of(*map(str, range(len(sizes))))
        for each, size in zip(self.pool.members, sizes, strict=True):
            each.link.num_cache_tokens = size  # type: ignore[misc]
        self.admission = Admission(max_num_seqs, max_queue_size, self.pool.has_room)
        self.inside: list[str] = []
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
            await stack.enter_async_context(self.admission.slot(num_tokens))
            stack.callback(place(self.pool, [0], num_new=num_tokens - 1).release)
            self.inside.append(name)
            stack.callback(self.inside.remove, name)
            await self._ends[name].wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_as_many_run_as_there_are_places() -> None:
    crowd = Crowd(100, max_num_seqs=2)
    for name in "abc":
        await crowd.enter(name, 10)
    assert crowd.inside == ["a", "b"]
    await crowd.leave("a")
    assert crowd.inside == ["b", "c"]


async def test_as_many_run_as_the_cache_has_room_for() -> None:
    crowd = Crowd(100)
    for name, num_tokens in (("a", 60), ("b", 40), ("c", 50), ("d", 10)):
        await crowd.enter(name, num_tokens)
    assert crowd.inside == ["a", "b"], "d is small enough, but c was here first"
    await crowd.leave("b")
    assert crowd.inside == ["a"]
    await crowd.leave("a")
    assert crowd.inside == ["c", "d"]


async def test_who_needs_more_than_there_is_runs_alone() -> None:
    crowd = Crowd(100)
    await crowd.enter("a", 10)
    await crowd.enter("giant", 500)
    await crowd.enter("b", 10)
    assert crowd.inside == ["a"]
    await crowd.leave("a")
    assert crowd.inside == ["giant"]
    await crowd.leave("giant")
    assert crowd.inside == ["b"]


async def test_who_gives_up_waiting_holds_nobody_up() -> None:
    crowd = Crowd(100)
    for name, num_tokens in (("a", 60), ("b", 90), ("c", 30)):
        await crowd.enter(name, num_tokens)
    assert crowd.inside == ["a"]
    await crowd.give_up("b")
    assert crowd.inside == ["a", "c"]
    await crowd.leave("a")
    await crowd.leave("c")
    assert crowd.admission.running == 0


@pytest.mark.parametrize("names", ["abcdef", "fedcba", "acebdf", "bcdef", "abef"])
async def test_any_number_may_give_up_at_once(names: str) -> None:
    """As when a proxy dies: a place that comes free is not given to those who are going too."""
    crowd = Crowd(100, max_num_seqs=2)
    for name in "abcdef":
        await crowd.enter(name, 10)
    await crowd.give_up(names)
    assert len(crowd.inside) == crowd.admission.running == min(2, 6 - len(names))
    await crowd.give_up("abcdef")
    for name in "xyz":
        await crowd.enter(name, 48)
    assert crowd.inside == ["x", "y"], "all places and all of the cache are free again"


async def test_a_full_queue_refuses_at_once_with_a_hint() -> None:
    crowd = Crowd(100, max_num_seqs=1, max_queue_size=1)
    await crowd.enter("a", 10)
    await crowd.enter("b", 10)
    with pytest.raises(ResourceExhausted, match="1 generations are running and 1 waiting") as refused:
        async with crowd.admission.slot(10):
            pass
    assert refused.value.retry_after_s


async def test_those_who_wait_are_admitted_when_the_capacity_has_grown() -> None:
    crowd = Crowd(100)
    for name in "abc":
        await crowd.enter(name, 60)
    assert crowd.inside == ["a"]
    crowd.pool.members[0].link.num_cache_tokens = 130  # type: ignore[misc]
    await settle()
    assert crowd.inside == ["a"]
    crowd.admission.admit_waiting()
    await settle()
    assert crowd.inside == ["a", "b"]


async def test_a_generation_waits_until_one_target_has_room_for_all_of_it() -> None:
    crowd = Crowd(100, 100)
    for name in "abcd":
        await crowd.enter(name, 60)
    assert crowd.inside == ["a", "b"], "80 tokens are free, but not at one target"
    # Both are admitted in one turn of the event loop, and each takes the room of another.
    crowd.pool.members[0].link.num_cache_tokens = 160  # type: ignore[misc]
    await crowd.give_up("b")
    assert crowd.inside == ["a", "c", "d"]
    assert [each.num_reserved for each in crowd.pool.members] == [120, 60]


async def test_those_admitted_in_one_turn_do_not_take_the_same_room() -> None:
    crowd = Crowd(100, 100)
    for name, num_tokens in (("a", 90), ("b", 90), ("giant", 500), ("c", 60), ("d", 60)):
        await crowd.enter(name, num_tokens)
    await crowd.give_up("ab")
    assert crowd.inside == ["giant", "c"]
    assert [each.num_reserved for each in crowd.pool.members] == [500, 60]


async def test_targets_that_are_about_to_end_have_no_room_beside_others() -> None:
    crowd = Crowd(100, 100)
    crowd.pool.members[0].link.load = ServerLoad(is_draining=True)
    for name, num_tokens in (("a", 40), ("b", 70), ("c", 50)):
        await crowd.enter(name, num_tokens)
    assert crowd.inside == ["a"]
    # What ends soon is better than nothing, and where none serves generations wait for their target, not in the queue.
    for at, inside in ((1, "ab"), (0, "abc")):
        crowd.pool.members[at].link.is_up = False
        crowd.admission.admit_waiting()
        await settle()
        assert crowd.inside == list(inside)
