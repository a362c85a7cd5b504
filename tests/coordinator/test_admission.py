"""Who gets a place: keys by their shares, each key's in order of arrival, as far as places and the cache's room go."""

import asyncio
from contextlib import AsyncExitStack

import pytest

from coordinator.admission import Admission
from coordinator.remote.server_load import ServerLoad
from paceline.errors import ResourceExhausted
from tests.coordinator.pools import placement, pool_of


class Crowd:
    """Generations that enter one after the other and stay until they are told to leave."""

    def __init__(self, *sizes: int, max_num_seqs: int = 9, max_queue_size: int = 9, **weights: float) -> None:
        """sizes: tokens of the targets' caches.
        weights: of keys; the first letter of a longer name is its key.
        """
        self.pool = pool_of(*map(str, range(len(sizes))))
        for each, size in zip(self.pool.endpoints, sizes, strict=True):
            each.link.num_cache_tokens = size  # type: ignore[misc]
        self.admission = Admission(
            max_num_seqs,
            max_queue_size,
            self.pool.has_room,
            lambda owner: weights.get(owner or "", 1.0),
            lambda: self.now_s,
        )
        self.now_s = 0.0
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
            owner = name[0] if len(name) > 1 else None
            await stack.enter_async_context(self.admission.slot(num_tokens, owner))
            stack.callback(placement(self.pool, [0], num_new=num_tokens - 1).release)
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
    await crowd.enter("G", 500)
    await crowd.enter("b", 10)
    assert crowd.inside == ["a"]
    await crowd.leave("a")
    assert crowd.inside == ["G"]
    await crowd.leave("G")
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


async def enter_all(crowd: Crowd, *names: str) -> None:
    for name in names:
        await crowd.enter(name, 1)


def many(key: str, count: int) -> list[str]:
    return [f"{key}{number}" for number in range(count)]


async def order_of(crowd: Crowd, count: int, seconds: float = 1.0) -> str:
    """Keys by whose turn it was, as the one that is inside for longest leaves after each so many seconds."""
    found = ""
    for _ in range(count):
        before = set(crowd.inside)
        crowd.now_s += seconds
        await crowd.leave(crowd.inside[0])
        found += "".join(name[0] for name in crowd.inside if name not in before)
    return found


@pytest.mark.parametrize("seconds", [0.0, 1.0])
async def test_a_key_that_comes_late_gets_the_next_place(seconds: float) -> None:
    crowd = Crowd(1000, max_num_seqs=4, max_queue_size=99)
    await enter_all(crowd, *many("a", 40), "b0")
    assert await order_of(crowd, 3, seconds) == "baa"
    await enter_all(crowd, "b1")
    assert (await order_of(crowd, 2, seconds)).count("b") == 1


@pytest.mark.parametrize("num_places", [1, 4])
@pytest.mark.parametrize(("weight", "turns"), [(1.0, 10), (3.0, 15)])
async def test_keys_that_wait_get_places_by_their_weights(num_places: int, weight: float, turns: int) -> None:
    crowd = Crowd(1000, max_num_seqs=num_places, max_queue_size=99, b=weight)
    await enter_all(crowd, *many("a", 30), *many("b", 30))
    await order_of(crowd, num_places)
    assert abs((await order_of(crowd, 20)).count("b") - turns) <= 1


async def test_who_holds_places_for_long_gets_fewer() -> None:
    crowd = Crowd(1000, max_num_seqs=1, max_queue_size=99)
    await enter_all(crowd, *many("a", 30), *many("b", 50))
    turns = ""
    for _ in range(40):
        turns += await order_of(crowd, 1, 9.0 if crowd.inside[0][0] == "a" else 1.0)
    assert turns.count("b") > 6 * turns.count("a")


async def test_a_key_that_was_away_does_not_make_up_for_it() -> None:
    crowd = Crowd(1000, max_num_seqs=1, max_queue_size=99)
    await enter_all(crowd, "b0", *many("a", 40))
    await order_of(crowd, 20)
    await enter_all(crowd, *[f"b{number}" for number in range(1, 20)])
    assert 4 <= (await order_of(crowd, 10)).count("b") <= 6


async def test_a_key_that_fills_the_queue_is_refused_and_others_are_not() -> None:
    crowd = Crowd(1000, max_num_seqs=1, max_queue_size=8)
    await enter_all(crowd, *many("a", 9))
    assert crowd.admission.waiting == 8

    async def refused(owner: str) -> bool:
        try:
            async with asyncio.timeout(0.01), crowd.admission.slot(1, owner):
                return False
        except TimeoutError:
            return False
        except ResourceExhausted:
            return True

    assert await refused("a")
    assert not await refused("b")
    await enter_all(crowd, *many("b", 4))
    assert [await refused("b"), await refused("a"), await refused("c")] == [True, True, False]


async def test_those_who_wait_are_admitted_when_the_capacity_has_grown() -> None:
    crowd = Crowd(100)
    for name in "abc":
        await crowd.enter(name, 60)
    assert crowd.inside == ["a"]
    crowd.pool.endpoints[0].link.num_cache_tokens = 130  # type: ignore[misc]
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
    crowd.pool.endpoints[0].link.num_cache_tokens = 160  # type: ignore[misc]
    await crowd.give_up("b")
    assert crowd.inside == ["a", "c", "d"]
    assert [each.num_reserved for each in crowd.pool.endpoints] == [120, 60]


async def test_those_admitted_in_one_turn_do_not_take_the_same_room() -> None:
    crowd = Crowd(100, 100)
    for name, num_tokens in (("a", 90), ("b", 90), ("G", 500), ("c", 60), ("d", 60)):
        await crowd.enter(name, num_tokens)
    await crowd.give_up("ab")
    assert crowd.inside == ["G", "c"]
    assert [each.num_reserved for each in crowd.pool.endpoints] == [500, 60]


async def test_targets_that_are_about_to_end_have_no_room_beside_others() -> None:
    crowd = Crowd(100, 100)
    crowd.pool.endpoints[0].link.load = ServerLoad(is_draining=True)
    for name, num_tokens in (("a", 40), ("b", 70), ("c", 50)):
        await crowd.enter(name, num_tokens)
    assert crowd.inside == ["a"]
    # What ends soon is better than nothing, and where none serves generations wait for their target, not in the queue.
    for at, inside in ((1, "ab"), (0, "abc")):
        crowd.pool.endpoints[at].link.is_up = False
        crowd.admission.admit_waiting()
        await settle()
        assert crowd.inside == list(inside)
