"""Lists of servers: addresses, a name in DNS, a file."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any

import pytest

from paceline.errors import InvalidArgument, Unavailable
from paceline.rpc import address_source
from paceline.rpc.address_source import AddressSource

WAIT_S = 20.0


async def test_addresses_are_what_they_are_each_once() -> None:
    given = AddressSource("target", "one:1,unix:/two,one:1")
    assert (given.is_fixed, await given.read()) == (True, ["one:1", "unix:/two"])


@pytest.mark.parametrize("text", ["", "one", "one:1,", "one:1,,two:2", "dns:one", "dns:one:0", "file:", "one:70000"])
def test_what_is_no_list_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^target is "):
        AddressSource("target", text)


async def test_a_name_is_resolved() -> None:
    assert await AddressSource("target", "dns:localhost:50052").read() == ["127.0.0.1:50052"]
    with pytest.raises(Unavailable, match=r"^target: dns:nobody\.invalid:50052 can't be read: "):
        await AddressSource("target", "dns:nobody.invalid:50052").read()


@pytest.mark.parametrize(
    ("found", "endpoints"),
    [
        (["fd00::2", "10.0.0.2", "fd00::1", "10.0.0.1"], ["10.0.0.1:7", "10.0.0.2:7"]),
        (["fd00::2", "fd00::1"], ["[fd00::1]:7", "[fd00::2]:7"]),
    ],
)
async def test_a_server_with_addresses_of_both_families_is_one_member(
    found: list[str], endpoints: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def resolve(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET6 if ":" in each else socket.AF_INET, 0, 0, "", (each, 7)) for each in found]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    assert await AddressSource("target", "dns:servers:7").read() == endpoints


async def test_a_list_that_is_written_later_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address_source, "INTERVAL_S", 0.01)
    given = AddressSource("target", f"file:{tmp_path}/targets")
    with pytest.raises(Unavailable):
        await given.wait(0)
    waiting = asyncio.create_task(given.wait(WAIT_S))
    await asyncio.sleep(0.05)
    (tmp_path / "targets").write_text("one:1\n")
    assert await waiting == ["one:1"]


async def test_a_file_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(address_source, "INTERVAL_S", 0.01)
    path = tmp_path / "targets"
    seen: list[list[str]] = []

    async def follow() -> None:
        async for addresses in AddressSource("target", f"file:{path}").changes():
            seen.append(addresses)

    async def until(count: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(seen) < count:
                await asyncio.sleep(0.01)

    following = asyncio.create_task(follow())
    try:
        path.write_text("one:1\n\n  two:2\n")
        await until(1)
        for bad in ("", "\n", "one\n", "one:1\n\0:2\n"):
            path.write_text(bad)
            await asyncio.sleep(0.05)
        path.unlink()
        await asyncio.sleep(0.05)
        # In another order they are the same.
        path.write_text("two:2\none:1\n")
        await asyncio.sleep(0.05)
        path.write_text("three:3\n")
        await until(2)
    finally:
        following.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    assert seen == [["one:1", "two:2"], ["three:3"]]
