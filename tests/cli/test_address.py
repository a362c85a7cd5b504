"""Errors for invalid addresses, and for addresses without a coordinator."""

from pathlib import Path

import pytest

from paceline.client import AsyncClient, Client
from paceline.errors import InvalidArgument, Unavailable, Unreachable
from paceline.sampling_params import SamplingParams
from tests.services import Service, Trio, running, start_service

COMMANDS = [("generate", "x"), ("chat",), ("plan", "--measure"), ("bench",)]


@pytest.mark.parametrize("address", ["http://127.0.0.1:50050", "50050", "unix:/tmp/a%20b"])
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_name_the_flag(paceline, command: tuple[str, ...], address: str) -> None:
    ran = paceline(*command, "--address", address)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert ran.err.startswith(f"error: --address is '{address}'; it must be HOST:PORT or unix:PATH")


@pytest.mark.parametrize("address", ["50050", "unix:/tmp/a,b"])
async def test_clients_refuse_a_bad_address(address: str) -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(InvalidArgument, match=f"^address is '{address}'; it must be HOST:PORT"):
            kind(address)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_commands_say_that_no_coordinator_answers_and_what_to_do(
    paceline, tmp_path: Path, command: tuple[str, ...]
) -> None:
    address = f"unix:{tmp_path}/nobody.sock"
    ran = paceline(*command, "--address", address)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.startswith(f"error: can't reach {address}: ")
    assert "is `paceline up` running? --address sets another address" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nobody.invalid:50050"])
async def test_a_client_says_that_no_coordinator_answers(address: str) -> None:
    async with AsyncClient(address) as client:
        with pytest.raises(Unreachable) as raised:
            await client.describe()
    assert raised.value.address == address


async def test_another_server_is_not_taken_for_a_coordinator(tiny_trio: Trio) -> None:
    async with AsyncClient(tiny_trio.draft.address) as client:
        with pytest.raises(Unavailable, match=f"^what answers at {tiny_trio.draft.address} is not a coordinator"):
            await client.describe()


async def kill_while_it_answers(coordinator: Service, client: AsyncClient) -> None:
    async for _ in client.stream("hi", SamplingParams(max_tokens=400, ignore_eos=True)):
        if coordinator.process.poll() is None:
            coordinator.kill()


async def test_a_coordinator_that_dies_is_named(tiny_trio: Trio, tmp_path: Path) -> None:
    addresses = ("--draft", tiny_trio.draft.address, "--target", tiny_trio.target.address)
    coordinator = start_service("coordinator", tmp_path, *addresses)
    with running(coordinator):
        async with AsyncClient(coordinator.address) as client:
            with pytest.raises(Unreachable) as raised:
                await kill_while_it_answers(coordinator, client)
            assert raised.value.address == coordinator.address
