"""Which of several servers a generation uses, and how it goes on at another."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.remote.pending import ServerLost
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Pool
from coordinator.remote.prefixes import MAX_BLOCKS, KnownPrefixes
from coordinator.remote.server_load import ServerLoad
from paceline.digests import block_digests
from paceline.errors import FatalRequest, InvalidArgument, ResourceExhausted, Unavailable
from paceline.rpc.address_source import AddressSource
from tests.coordinator.contexts import make_context
from tests.coordinator.pools import BLOCK, PROMPT, endpoint, placement, pool_of, read


def test_generations_spread_where_nothing_is_known() -> None:
    pool = pool_of("a", "b", "c")
    for _ in range(9):
        placement(pool)
    assert [each.num_placed for each in pool.endpoints] == [3, 3, 3]


def test_a_conversation_returns_to_the_member_that_has_read_it() -> None:
    pool = pool_of("a", "b", "c")
    others = [placement(pool, [each]) for each in (100, 200)]
    first = placement(pool)
    assert first.link.address == "c"
    first.num_fed = len(PROMPT)
    first.release()
    for each in others:
        each.release()
    again = placement(pool, [*PROMPT, 11, 12])
    assert again.link.address == "c"
    # Other tokens, and the same under another salt, are known nowhere.
    assert placement(pool, [1, *PROMPT]).link.address == "a"
    assert placement(pool, salt="other").link.address == "b"


def test_cached_tokens_outweigh_others_generations_as_far_as_they_save_time() -> None:
    pool = pool_of("a", "b")
    read(pool)
    # 8 tokens are known at the first. Beside another generation each of 4 rounds takes a second longer.
    assert [placement(pool).link.address for _ in range(6)] == ["a", "a", "b", "a", "b", "a"]
    pool = pool_of("a", "b")
    read(pool)
    assert [placement(pool, num_new=40).link.address for _ in range(4)] == ["a", "b", "a", "b"]


def test_a_member_whose_cache_is_spoken_for_comes_last() -> None:
    pool = pool_of("a", "b")
    read(pool)
    large = placement(pool, num_new=990)
    assert [placement(pool).link.address for _ in range(3)] == ["b", "b", "b"]
    large.release()
    assert placement(pool).link.address == "a"
    assert (pool.endpoints[0].num_placed, pool.endpoints[0].num_reserved) == (1, 16)


def test_other_coordinators_generations_count_like_ones_own() -> None:
    pool = pool_of("a", "b")
    pool.endpoints[0].link.load = ServerLoad(num_other_generations=2)
    assert [placement(pool).link.address for _ in range(4)] == ["b", "b", "a", "b"]
    assert pool.endpoints[1].link.reservation == (3, 48)


def test_a_member_that_is_about_to_end_gets_no_more_and_keeps_what_it_has() -> None:
    pool = pool_of("a", "b")
    here = placement(pool)
    pool.endpoints[0].link.load = ServerLoad(is_draining=True)
    assert {placement(pool).link.address for _ in range(5)} == {"b"}
    assert (here.link.address, here.is_serving) == ("a", True)


def test_a_member_that_is_about_to_end_is_better_than_none() -> None:
    pool = pool_of("a", "b", "c")
    pool.endpoints[0].link.is_up = False
    pool.endpoints[1].link.load = ServerLoad(is_draining=True)
    here = placement(pool)
    assert here.link.address == "c"
    pool.endpoints[2].link.is_up = False
    assert (placement(pool).link.address, here.migrate(), here.link.address) == ("b", True, "b")
    # One that is open is not left for it.
    pool.endpoints[0].link.is_up = True
    assert (here.migrate(), here.migrate(), here.link.address) == (True, False, "a")


def test_a_slower_member_gets_fewer_and_one_that_is_not_known_yet_is_tried() -> None:
    pool = pool_of("a", "b", "c")
    for each, token_s in zip(pool.endpoints, (4.0, 1.2, 1.0), strict=True):
        each.link.load = ServerLoad(token_s=token_s)
    # 1.2 and 1 are alike.
    assert [placement(pool).link.address for _ in range(4)] == ["b", "c", "b", "c"]
    pool.endpoints[0].link.load = ServerLoad()
    assert placement(pool).link.address == "a"


def test_a_search_reserves_what_all_its_beams_may_need() -> None:
    pool = pool_of("a", "b")
    read(pool)
    large = placement(pool, num_new=960)
    single = placement(pool)
    single.release()
    search = placement(pool, beams=3)
    assert [each.link.address for each in (large, single, search)] == ["a", "a", "b"]
    # Beyond the full blocks of the prompt each beam has its own.
    assert pool.endpoints[1].num_reserved == 8 + 3 * 8


def test_each_sequence_reserves_a_recurrent_state() -> None:
    pool = pool_of("a")
    pool.endpoints[0].link.num_state_tokens = 30
    for num_new, beams, num_reserved in ((4, 1, 30), (40, 1, 52), (4, 3, 90)):
        placed = placement(pool, num_new=num_new, beams=beams)
        assert pool.endpoints[0].num_reserved == num_reserved
        placed.release()


def test_what_a_member_has_forgotten_no_longer_draws_generations() -> None:
    pool = pool_of("a", "b")
    read(pool)
    again = placement(pool)
    assert again.link.address == "a"
    again.learn_cached(0)
    assert pool.endpoints[0].known.num_blocks(digests_of(PROMPT)) == 0


def test_only_what_a_member_has_read_is_taken_for_cached() -> None:
    pool = pool_of("a", "b")
    for num_fed, num_blocks in ((0, 0), (7, 1), (8, 2)):
        here = placement(pool)
        here.num_fed = num_fed
        here.release()
        assert pool.endpoints[0].known.num_blocks(digests_of(PROMPT)) == num_blocks
    migrated = placement(pool)
    migrated.num_fed = len(PROMPT)
    assert migrated.migrate()
    migrated.release()
    assert pool.endpoints[1].known.num_blocks(digests_of(PROMPT)) == 0


def test_a_process_that_is_started_again_has_nothing_cached() -> None:
    pool = pool_of("a", "b")
    read(pool)
    known = [pool.endpoints[0].known.num_blocks(digests_of(PROMPT))]
    pool.endpoints[0].link.process = "another"
    known.append(pool.endpoints[0].known.num_blocks(digests_of(PROMPT)))
    assert known == [2, 0]


def test_nothing_is_digested_before_a_members_blocks_are_known() -> None:
    pool = pool_of("a", "b")
    for each in pool.endpoints:
        each.link.num_block_tokens = 1  # type: ignore[misc]
    here = placement(pool)
    assert here._digests == []
    pool.endpoints[1].link.num_block_tokens = BLOCK  # type: ignore[misc]
    assert here._digests == digests_of(PROMPT)


def test_members_that_are_silent_or_leave_get_none() -> None:
    pool = pool_of("a", "b", "c")
    pool.endpoints[0].link.is_silent = True  # type: ignore[misc]
    pool.endpoints[1].is_leaving = True
    assert {placement(pool).link.address for _ in range(5)} == {"c"}


async def test_an_attempt_goes_on_at_another_member_at_once() -> None:
    pool = pool_of("a", "b", "c")
    here, asked = placement(pool), []

    async def attempt() -> str:
        asked.append(here.link.address)
        if len(asked) < 3:
            raise (Unavailable if len(asked) == 1 else ResourceExhausted)("no")
        return here.link.address

    assert await here.retry(0.0, attempt) == "c"
    assert (asked, pool.num_migrations) == (["a", "b", "c"], 2)
    assert [each.num_placed for each in pool.endpoints] == [0, 0, 1]


async def test_attempts_that_share_a_place_move_it_once() -> None:
    pool = pool_of("a", "b", "c")
    here, asked = placement(pool), []

    async def attempt() -> str:
        asked.append(address := here.link.address)
        await asyncio.sleep(0)
        if address == "a":
            raise Unavailable("no")
        return address

    assert await asyncio.gather(*(here.retry(0.0, attempt) for _ in range(3))) == ["b"] * 3
    assert (asked, pool.num_migrations) == (["a"] * 3 + ["b"] * 3, 1)


async def test_a_place_at_a_given_member_stays_there() -> None:
    pool = pool_of("a", "b")
    here, asked = Placement(pool, make_context(PROMPT).request, PROMPT, pool.endpoints[1]), []

    async def attempt() -> None:
        asked.append(here.link.address)
        raise ResourceExhausted("full")

    with pytest.raises(ResourceExhausted):
        await here.retry(0.05, attempt)
    assert set(asked) == {"b"}


async def test_all_members_are_tried_before_it_waits_and_after_the_timeout_it_fails() -> None:
    pool = pool_of("a", "b")
    here, asked = placement(pool), []

    async def attempt() -> None:
        asked.append(here.link.address)
        raise ResourceExhausted("full")

    with pytest.raises(ResourceExhausted):
        await here.retry(0.05, attempt)
    assert asked[:2] == ["a", "b"]
    assert len(asked) > 2


def pool_of_models(**models: str) -> Pool:
    """`models`: by the endpoint's name; empty while its model info was never seen."""
    pool = pool_of()
    pool.endpoints = [endpoint(name, model) for name, model in models.items()]
    return pool


def test_a_place_of_a_model_stays_with_members_that_have_it() -> None:
    pool = pool_of_models(a="large", b="small", c="small", d="")
    assert pool.models == ["large", "small"]
    assert [placement(pool, model="small").link.address for _ in range(4)] == ["b", "c", "b", "c"]
    here = placement(pool, model="small")
    assert (here.link.address, here.model, here.migrate()) == ("b", "small", True)
    pool.endpoints[1].link.is_up = False
    assert (here.link.address, here.migrate()) == ("c", False)
    assert here.is_serving
    # Without a name all may be used.
    assert {placement(pool).link.address for _ in range(8)} == {"a", "c", "d"}


def test_a_place_of_a_model_begins_at_a_member_that_has_it_even_if_that_is_away() -> None:
    pool = pool_of_models(a="large", b="small")
    pool.endpoints[1].link.is_up = False
    here = placement(pool, model="small")
    assert (here.link.address, here.is_serving, here.migrate()) == ("b", False, False)


def test_a_place_of_a_model_leaves_a_member_that_comes_back_with_another() -> None:
    pool = pool_of_models(a="small", b="small")
    here, other = placement(pool, model="small"), placement(pool)
    pool.endpoints[0].link.model_info = cast(Any, SimpleNamespace(name="large"))
    assert (here.link.address, here.is_serving, here.migrate()) == ("a", False, True)
    assert (here.link.address, here.is_serving) == ("b", True)
    other.migrate()
    pool.endpoints[1].link.model_info = cast(Any, SimpleNamespace(name="large"))
    assert other.is_serving


def test_a_place_stays_with_members_of_one_tokenizer() -> None:
    pool, other = pool_of("a", "b", "c"), cast(Any, "another tokenizer's")
    pool.endpoints[1].link.translation = other
    here = placement(pool)
    assert (here.link.address, here.translation) == ("a", None)
    assert (here.migrate(), here.link.address) == (True, "c")
    pool.endpoints[2].link.translation = other
    assert (here.is_serving, here.migrate(), here.link.address) == (False, True, "a")


async def test_other_errors_move_nothing() -> None:
    pool = pool_of("a", "b")
    here = placement(pool)

    async def attempt() -> None:
        raise InvalidArgument("tokens", "are wrong")

    with pytest.raises(InvalidArgument):
        await here.retry(9.0, attempt)
    assert (here.link.address, pool.num_migrations) == ("a", 0)


async def test_while_none_is_up_it_waits_for_the_first() -> None:
    pool = pool_of("a", "b")
    for each in pool.endpoints:
        each.link.is_up = False
    here = placement(pool)

    async def come_up() -> None:
        await asyncio.sleep(0.05)
        pool.endpoints[1].link.is_up = True
        pool._changed.set()

    async def attempt() -> str:
        return here.link.address

    coming = asyncio.create_task(come_up())
    assert await here.retry(20.0, attempt) == "b"
    await coming
    pool.endpoints[1].link.is_up = False
    with pytest.raises(Unavailable, match="a is away; b is away"):
        await here.retry(-9.0, attempt)


@contextlib.asynccontextmanager
async def following(*texts: str) -> AsyncIterator[Pool]:
    pool = Pool("target", AddressSource("target", ",".join(texts)), lambda address, model_info: None)
    await pool.start()
    try:
        yield pool
    finally:
        await pool.stop()


async def test_members_come_and_go_with_the_list() -> None:
    async with following("unix:/nowhere/one", "unix:/nowhere/two") as pool:
        one, two = pool.endpoints
        pool._set(["unix:/nowhere/two", "unix:/nowhere/three"])
        assert [each.link.address[-3:] for each in pool.endpoints] == ["one", "two", "ree"]
        assert (one.is_leaving, two.is_leaving) == (True, False)
        async with asyncio.timeout(20):
            while one in pool.endpoints:
                await asyncio.sleep(0.01)
        assert len(pool.endpoints) == 2


async def test_a_member_with_generations_is_let_go_when_they_have_ended_unless_it_returns() -> None:
    pool = pool_of("unix:/one", "unix:/two")
    one, two = pool.endpoints
    one.num_placed = two.num_placed = 1
    pool._set(["unix:/nowhere/three"])
    await asyncio.sleep(0.2)
    assert len(pool.endpoints) == 3
    pool._set(["unix:/nowhere/three", "unix:/two"])
    one.num_placed = 0
    async with asyncio.timeout(20):
        while one in pool.endpoints:
            await asyncio.sleep(0.01)
    # The other had as much time.
    await asyncio.sleep(0.2)
    assert two in pool.endpoints
    assert not two.is_leaving
    await pool.stop()


def test_blocks_are_those_of_all_members_that_are_up() -> None:
    pool = pool_of("a", "b", "c")
    for each, (free, total) in zip(pool.endpoints, ((1, 10), (5, 20), (30, 30)), strict=True):
        link = cast(Any, each.link)
        link.model_info, link.load = SimpleNamespace(total_blocks=total), ServerLoad(num_free_blocks=free)
    cast(Any, pool.endpoints[2].link).is_up = False
    assert pool.num_blocks == (6, 30)


def digests_of(tokens: list[int]) -> list[bytes]:
    return list(block_digests([], tokens, "", BLOCK))


def test_digests_of_a_context_grow_with_it() -> None:
    first = digests_of(PROMPT[:7])
    assert [*first, *block_digests(first, PROMPT, "", BLOCK)] == digests_of(PROMPT)
    assert len(first) == 1


def test_blocks_are_told_by_all_tokens_before_them() -> None:
    digests = digests_of(PROMPT)
    assert len(digests) == 2
    assert digests_of([*PROMPT[:4], 99, *PROMPT[5:]])[0] == digests[0]
    assert digests_of([99, *PROMPT[1:]])[1] != digests[1]
    known = KnownPrefixes()
    known.add(digests[:1])
    assert (known.num_blocks(digests), known.num_blocks(digests[1:])) == (1, 0)


def test_the_least_recently_used_blocks_are_forgotten() -> None:
    known = KnownPrefixes()
    first = [b"first"]
    known.add(first)
    known.add([str(each).encode() for each in range(MAX_BLOCKS - 1)])
    known.add(first)
    known.add([b"one more"])
    assert (known.num_blocks(first), known.num_blocks([b"0"])) == (1, 0)


def deadly(here: Placement, num_answers: int, deaths: list[str]) -> Callable[[], Awaitable[str]]:
    """Answers so often, then the endpoint dies; it is back at once."""

    async def attempt() -> str:
        nonlocal num_answers
        if num_answers:
            num_answers -= 1
            return here.link.address
        deaths.append(here.link.address)
        raise ServerLost("the target server died")

    return attempt


@pytest.mark.parametrize(("num_answers", "num_deaths"), [(0, 2), (5, 3)])
async def test_who_kills_targets_is_refused_before_it_has_killed_all(num_answers: int, num_deaths: int) -> None:
    pool, deaths = pool_of(*"abcdef"), list[str]()
    here = placement(pool)
    attempt = deadly(here, num_answers, deaths)
    for _ in range(num_answers):
        await here.retry(9.0, attempt)
    with pytest.raises(FatalRequest, match=f"{num_deaths} times a target server died"):
        await here.retry(9.0, attempt)
    assert len(deaths) == num_deaths


async def test_generations_that_were_there_at_a_death_are_tried_one_at_a_time() -> None:
    pool, inside, most = pool_of("a", "b"), 0, 0
    here = [placement(pool) for _ in range(6)]
    died = set[Placement]()

    async def attempt(each: Placement) -> str:
        nonlocal inside, most
        if each not in died:
            died.add(each)
            raise ServerLost("the target server died")
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0)
        inside -= 1
        return "done"

    answers = await asyncio.gather(*(each.retry(9.0, partial(attempt, each)) for each in here))
    assert (answers, most) == (["done"] * 6, 1)


async def test_samples_of_a_refused_request_are_not_tried() -> None:
    pool, deaths = pool_of("a", "b"), list[str]()
    here = [placement(pool) for _ in range(4)]
    for each in here[1:]:
        each.suspicion._fate = here[0].suspicion._fate
    ended = await asyncio.gather(*(each.retry(9.0, deadly(each, 0, deaths)) for each in here), return_exceptions=True)
    assert [type(each) for each in ended] == [FatalRequest] * 4
    assert len(deaths) == 4 + 1
