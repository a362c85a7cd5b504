"""Leases of addresses, without Ray."""

import asyncio
import time

import pytest

from paceline.ray import directory
from paceline.ray.directory import NOTHING_SEEN, Directory
from paceline.ray.scaling import Demand


async def test_a_change_answers_a_waiting_question() -> None:
    found = Directory()
    await found.renew("target", "a", "127.0.0.1:1", Demand())
    seen, lists = await found.lists(NOTHING_SEEN)
    assert lists == {"target": ["127.0.0.1:1"]}
    asking = asyncio.create_task(found.lists(seen))
    # A renewal is no change.
    await found.renew("target", "a", "127.0.0.1:1", Demand())
    await asyncio.sleep(0.01)
    assert not asking.done()
    await found.renew("draft", "b", "127.0.0.1:2", Demand())
    seen, lists = await asking
    assert lists == {"target": ["127.0.0.1:1"], "draft": ["127.0.0.1:2"]}
    await found.leave("a")
    assert (await found.lists(seen))[1] == {"draft": ["127.0.0.1:2"]}


async def test_who_does_not_renew_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "LEASE_S", 0.05)
    monkeypatch.setattr(directory, "POLL_S", 0.02)
    found = Directory()
    await found.renew("target", "a", "127.0.0.1:1", Demand())
    seen, _ = await found.lists(NOTHING_SEEN)
    async with asyncio.timeout(10.0):
        while True:
            await found.renew("target", "b", "127.0.0.1:2", Demand())
            seen, lists = await found.lists(seen)
            if lists == {"target": ["127.0.0.1:2"]}:
                return


@pytest.mark.parametrize("clock_s", [-3600.0, 0.0, 3600.0])
async def test_a_restarted_directory_answers_once_all_have_renewed(
    monkeypatch: pytest.MonkeyPatch, clock_s: float
) -> None:
    """On whatever machine: `clock_s` is how far its clock is ahead of the first one's."""
    monkeypatch.setattr(directory, "SETTLING_S", 0.2)
    before = Directory()
    await before.renew("target", "a", "127.0.0.1:1", Demand())
    await before.renew("target", "b", "127.0.0.1:2", Demand())
    seen, lists = await before.lists(NOTHING_SEEN)
    now_ns = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now_ns + int(clock_s * 1e9))
    after = Directory()
    await after.renew("target", "b", "127.0.0.1:2", Demand())
    asking = asyncio.create_task(after.lists(seen))
    await asyncio.sleep(0.05)
    assert not asking.done()
    await after.renew("target", "a", "127.0.0.1:1", Demand())
    _, again = await asking
    assert again == lists
