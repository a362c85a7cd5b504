"""A link to a server that is broken: it goes down and says why, nobody waits for ever, and it comes up again.

The server is a fake, because a real one never sends such answers.
"""

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.remote.link import Link
from coordinator.remote.pool import Pool
from coordinator.remote.server_load import ServerLoad
from paceline.errors import ConfigError, OutOfRange, Unavailable
from paceline.rpc.address_source import AddressSource
from paceline.rpc.channel import MAX_COMMAND_BYTES, MAX_COMMANDS, SPLIT_BYTES
from paceline.rpc.model_messages import PROTOCOL_VERSION, open_to_message
from paceline.rpc.server import Server
from paceline.sampling_params import (
    MAX_ID_CHARACTERS,
    MAX_LISTED_IDS,
    MAX_SALT_CHARACTERS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    SamplingParams,
)
from paceline.v1 import model_pb2
from tests.coordinator import fake_server
from tests.coordinator.fake_server import FakeServer

WAIT_S = 20.0


class Raw:
    """Bytes in place of a message."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:
        return self._data


def good(command: Any) -> Any:
    response = model_pb2.SessionResponse()
    response.answers.add(command_id=command.command_id).verify_result.tokens.append(7)
    return response


def of_no_kind(command: Any) -> Any:
    response = model_pb2.SessionResponse()
    response.answers.add(command_id=command.command_id)
    return response


def of_a_kind_from_the_future(command: Any) -> Any:
    # Field 15 of Answer, a message without content.
    answer = bytes([0x08, command.command_id, 0x7A, 0x00])
    return Raw(bytes([0x12, len(answer)]) + answer)


def of_another_command(command: Any) -> Any:
    response = model_pb2.SessionResponse()
    response.answers.add(command_id=command.command_id).open_ack.SetInParent()
    return response


def of_another_job(command: Any) -> Any:
    response = model_pb2.SessionResponse()
    response.answers.add(command_id=command.command_id).proposal.tokens.append(7)
    return response


def part_of_another_command(command: Any) -> Any:
    response = model_pb2.SessionResponse()
    response.answers.add(command_id=command.command_id).prompt_logprobs.SetInParent()
    return response


def no_answer(command: Any) -> Any:
    return model_pb2.SessionResponse(engine_steps=1)


def no_message(command: Any) -> Any:
    return Raw(b"\xff\xff\xff")


class FakeTarget(FakeServer):
    """Answers as it is told to: the first session by `answer`, later ones well."""

    def __init__(self, answer: Any = good, version: int = PROTOCOL_VERSION, role: str = "target") -> None:
        super().__init__(
            role, name="fake", max_model_len=512, block_size=16, total_blocks=10, free_blocks=10, num_states=3
        )
        self.model_info.protocol_version = version
        self.sessions = self.commands = 0
        # Of each message.
        self.sizes: list[int] = []
        self.counts: list[int] = []
        self.reservations: list[tuple[int, int] | None] = []
        self._answer = answer
        # Of the first session, as if the process were another than the model info's.
        self.instance_id = ""

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.sessions += 1
        answer = self._answer if self.sessions == 1 else good
        instance_id = self.instance_id if self.sessions == 1 else ""
        yield model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake", instance_id=instance_id))
        async for request in requests:
            self.sizes.append(request.ByteSize())
            self.counts.append(len(request.commands))
            reservation = request.reservation
            self.reservations.append(
                (reservation.num_generations, reservation.reserved_tokens) if request.HasField("reservation") else None
            )
            for command in request.commands:
                self.commands += 1
                yield answer(command)

    async def hear(self, num_messages: int) -> None:
        async with asyncio.timeout(WAIT_S):
            while len(self.reservations) < num_messages:
                await asyncio.sleep(0.01)


def serving(fake: FakeTarget, folder: Path) -> contextlib.AbstractAsyncContextManager[str]:
    return fake_server.serving(fake, f"unix:{folder}/fake.sock")


@contextlib.asynccontextmanager
async def linked(address: str, check_model_info: Any = lambda model_info: None) -> AsyncIterator[Link]:
    link = Link("target", address, check_model_info)
    link.start()
    try:
        yield link
    finally:
        await link.stop()


async def come_up(link: Link, epoch: int = 1) -> None:
    async with asyncio.timeout(WAIT_S):
        while not link.is_up or link.epoch < epoch:
            link.want()
            await asyncio.sleep(0.01)


async def ask(link: Link) -> Any:
    return await asyncio.wait_for(link.request(1, "verify", lambda command: command.verify.SetInParent()), WAIT_S)


BROKEN = {
    "of no kind": (of_no_kind, "an answer of unknown kind"),
    "of a kind from the future": (of_a_kind_from_the_future, "an answer of unknown kind"),
    "to another command": (of_another_command, "'open_ack'"),
    "to a Propose": (of_another_job, "'proposal'"),
    "a part that nobody takes": (part_of_another_command, "'prompt_logprobs'"),
    "no message": (no_message, "not valid protobuf"),
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_server_with_broken_answers_is_left_saying_why_and_tried_again(name: str, tmp_path: Path) -> None:
    answer, reason = BROKEN[name]
    async with serving(FakeTarget(answer), tmp_path) as address, linked(address) as link:
        await come_up(link)
        first_epoch = link.epoch
        with pytest.raises(Unavailable, match=reason) as caught:
            await ask(link)
        assert address in str(caught.value)
        await come_up(link)
        assert link.epoch > first_epoch
        assert list((await ask(link)).tokens) == [7]


class BeatingTarget(FakeTarget):
    """Tells that it lives, until it falls silent."""

    is_silent = False

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.sessions += 1
        yield model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake"))
        while True:
            await asyncio.sleep(0.02)
            if not self.is_silent:
                yield model_pb2.SessionResponse(engine_steps=1)


def pause(seconds: float) -> None:
    """As if the machine were paused: nobody here does anything."""
    time.sleep(seconds)


async def test_a_coordinator_that_was_stopped_takes_no_server_for_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.remote.link.STALL_S", 1.0)
    fake = BeatingTarget()
    async with serving(fake, tmp_path) as address, linked(address) as link:
        await come_up(link)
        for _ in range(3):
            pause(1.1)
            heard_s = link._heard_s
            while link._heard_s == heard_s:
                await asyncio.sleep(0.01)
        assert (link.is_up, fake.sessions) == (True, 1)
        fake.is_silent = True
        async with asyncio.timeout(WAIT_S):
            while link.is_up:
                await asyncio.sleep(0.01)
        assert "no message for 1 s" in link.absence


async def test_a_fault_in_the_links_own_code_does_not_end_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    faults = [RuntimeError("a fault of ours")]

    def check_model_info(model_info: Any) -> None:
        if faults:
            raise faults.pop()

    async with serving(FakeTarget(), tmp_path) as address, linked(address, check_model_info) as link:
        await come_up(link)
        assert list((await ask(link)).tokens) == [7]
    assert "a fault of ours" in caplog.text


async def test_a_fault_while_sending_fails_those_who_wait(tmp_path: Path) -> None:
    fake = FakeTarget(no_answer)
    async with serving(fake, tmp_path) as address, linked(address) as link:
        await come_up(link)
        asking = asyncio.create_task(ask(link))
        while fake.commands == 0:
            await asyncio.sleep(0.01)
        # A fault of the link's own: this is no list of messages.
        link._unsent = None  # type: ignore[assignment]
        link._has_unsent.set()
        with pytest.raises(Unavailable, match="lost the target server"):
            await asking
        await come_up(link)
        assert list((await ask(link)).tokens) == [7]


async def test_a_server_of_another_protocol_version_is_refused_naming_both(tmp_path: Path) -> None:
    async with serving(FakeTarget(version=PROTOCOL_VERSION + 1), tmp_path) as address:
        pool = Pool("target", AddressSource("target", address), lambda address, model_info: None)
        await pool.start()
        with pytest.raises(ConfigError, match=f"version {PROTOCOL_VERSION + 1} .*version {PROTOCOL_VERSION}"):
            await pool.wait_usable(WAIT_S)
        await pool.stop()


async def test_what_does_not_offer_the_service_is_refused_as_older_or_another(tmp_path: Path) -> None:
    server = Server(f"unix:{tmp_path}/older.sock")
    address = await server.start()
    pool = Pool("draft", AddressSource("draft", address), lambda address, model_info: None)
    await pool.start()
    with pytest.raises(ConfigError, match=f"{address} is no model server with version {PROTOCOL_VERSION} .*older"):
        await pool.wait_usable(WAIT_S)
    await pool.stop()
    await server.stop(0)


async def test_a_server_of_another_role_is_refused_naming_both(tmp_path: Path) -> None:
    async with serving(FakeTarget(role="draft"), tmp_path) as address:
        pool = Pool("target", AddressSource("target", address), lambda address, model_info: None)
        await pool.start()
        with pytest.raises(ConfigError, match=f"{address} is a draft server; --target takes .* a target server"):
            await pool.wait_usable(WAIT_S)
        await pool.stop()


async def test_a_server_that_is_started_again_while_it_is_connected_is_asked_again(tmp_path: Path) -> None:
    """Its model info is another process's, of which the weights may be others."""
    fake = FakeTarget()
    fake.instance_id = "another"
    async with serving(fake, tmp_path) as address, linked(address) as link:
        await come_up(link)
        assert (fake.sessions, link.epoch) == (2, 1)


async def test_what_is_asked_of_a_member_that_stays_too_long_after_it_left_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that it is asked elsewhere."""
    monkeypatch.setattr("coordinator.remote.pool.DRAIN_S", 0.1)
    async with serving(FakeTarget(no_answer), tmp_path) as address:
        pool = Pool("target", AddressSource("target", address), lambda address, model_info: None)
        await pool.start()
        await pool.wait_up(WAIT_S)
        [endpoint] = pool.endpoints
        endpoint.num_placed = 1
        asking = asyncio.create_task(ask(endpoint.link))
        await asyncio.sleep(0.05)
        pool._set(["unix:/nowhere"])
        with pytest.raises(Unavailable, match="no longer used"):
            await asking
        assert not endpoint.link.is_up
        await pool.stop()


async def test_a_link_stays_down_when_a_server_of_another_version_takes_its_place(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        async with serving(FakeTarget(), tmp_path) as address:
            link = await stack.enter_async_context(linked(address))
            await come_up(link)
        newer = FakeTarget(version=PROTOCOL_VERSION + 1)
        await stack.enter_async_context(serving(newer, tmp_path))
        trouble = ""
        async with asyncio.timeout(WAIT_S):
            while "version" not in trouble:
                trouble = link.absence
                await asyncio.sleep(0.01)
        assert f"version {PROTOCOL_VERSION + 1}" in trouble
        assert not link.is_up
        assert newer.sessions == 0


async def test_a_coordinator_ends_where_its_target_is_of_another_version(tmp_path: Path) -> None:
    async with serving(FakeTarget(version=PROTOCOL_VERSION + 1), tmp_path) as address:
        flags = ("--target", address, "--draft", "none", "--listen", f"unix:{tmp_path}/coordinator.sock")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "coordinator", *flags, stderr=asyncio.subprocess.PIPE
        )
        _, stderr = await process.communicate()
    [line] = [line for line in stderr.decode().splitlines() if line.startswith("error:")]
    assert f"version {PROTOCOL_VERSION + 1}" in line
    assert f"version {PROTOCOL_VERSION}" in line
    assert process.returncode == 1
    assert "Traceback" not in stderr.decode()


def with_tail(num_bytes: int) -> Any:
    """Fills a command of so many bytes and a few more: ids of a byte each."""
    return lambda command: command.verify.tail_tokens.extend([1] * num_bytes)


async def test_a_command_that_no_message_holds_fails_alone(tmp_path: Path) -> None:
    fake = FakeTarget()
    async with serving(fake, tmp_path) as address, linked(address) as link:
        await come_up(link)
        for size in (MAX_COMMAND_BYTES, 17 << 20):
            # What is sent in the same turn of the event loop shares its message.
            beside = [asyncio.create_task(ask(link)) for _ in range(3)]
            await asyncio.sleep(0)
            with pytest.raises(OutOfRange, match=f"target server accepts at most {MAX_COMMAND_BYTES}"):
                await link.request(1, "verify", with_tail(size))
            assert [list((await each).tokens) for each in beside] == [[7]] * 3
        largest = await link.request(1, "verify", with_tail(MAX_COMMAND_BYTES - 100))
        assert list(largest.tokens) == [7]
        assert (link.epoch, fake.sessions) == (1, 1)


async def test_many_commands_of_one_moment_travel_in_several_messages(tmp_path: Path) -> None:
    fake = FakeTarget()
    async with serving(fake, tmp_path) as address, linked(address) as link:
        await come_up(link)
        for _ in range(2 * MAX_COMMANDS + 5):
            link.send(1, lambda command: command.release.SetInParent())
        await ask(link)
        assert fake.commands == 2 * MAX_COMMANDS + 6
        assert max(fake.counts) == MAX_COMMANDS


async def test_the_largest_opens_of_one_moment_make_no_large_message(tmp_path: Path) -> None:
    """All samples of a request open their sequences together, on the stream that all generations share."""
    ids = tuple(range(2**31 - MAX_LISTED_IDS, 2**31))
    sampling = SamplingParams(
        stop=("\U0010ffff" * MAX_STOP_CHARACTERS,) * MAX_STOP_STRINGS,
        stop_token_ids=ids, allowed_token_ids=ids, banned_token_ids=ids, logit_bias=dict.fromkeys(ids, 1.5), seed=2**64 - 1,
    )  # fmt: skip
    largest = open_to_message(
        sampling, 2**32 - 1, ids, "\U0010ffff" * MAX_SALT_CHARACTERS, "\U0010ffff" * MAX_ID_CHARACTERS
    )
    assert SPLIT_BYTES / 2 < largest.ByteSize() < SPLIT_BYTES
    # Servers never look at texts.
    assert not largest.sampling.stop
    fake = FakeTarget()
    async with serving(fake, tmp_path) as address, linked(address) as link:
        await come_up(link)
        for sequence_id in range(1, 65):
            link.send(sequence_id, lambda command: command.open.CopyFrom(largest))
        await ask(link)
        assert fake.commands == 65
        assert max(fake.sizes) <= SPLIT_BYTES + largest.ByteSize() + 100


async def test_a_server_says_how_it_is_doing_and_starts_anew_at_each_connection(tmp_path: Path) -> None:
    fake = FakeTarget(lambda command: model_pb2.SessionResponse(load=model_pb2.Load(free_blocks=3, is_draining=True)))
    changes: list[int] = []
    async with linked(f"unix:{tmp_path}/fake.sock") as link:
        link._on_change = lambda: changes.append(link.load.num_free_blocks)
        async with serving(fake, tmp_path):
            await come_up(link)
            assert (link.load.num_free_blocks, link.load.is_draining) == (10, False)
            link.send(1, lambda command: command.verify.SetInParent())
            async with asyncio.timeout(WAIT_S):
                while not link.load.is_draining:
                    await asyncio.sleep(0.01)
        async with serving(fake, tmp_path):
            await come_up(link, 2)
            assert (link.load.num_free_blocks, link.load.is_draining) == (10, False)
    assert changes == [10, 3, 10]


async def test_a_server_is_told_what_its_client_needs_when_that_has_changed_and_at_each_connection(
    tmp_path: Path,
) -> None:
    fake = FakeTarget()
    async with linked(f"unix:{tmp_path}/fake.sock") as link:
        async with serving(fake, tmp_path):
            await come_up(link)
            for reservation in ((0, 0), (2, 90), (2, 90), (0, 0)):
                link.reservation = reservation
                await ask(link)
            assert fake.reservations == [None, (2, 90), None, (0, 0)]
            # Without a command, too: what is left is anyone's.
            link.reservation = (1, 20)
            await fake.hear(5)
            assert link.epoch == 1
        async with serving(fake, tmp_path):
            await come_up(link, 2)
            await fake.hear(6)
            await ask(link)
    assert (fake.reservations[4:], fake.counts[4:]) == ([(1, 20), (1, 20), None], [0, 0, 1])


async def test_a_sequence_has_so_many_tokens_that_all_states_are_enough(tmp_path: Path) -> None:
    async with linked(f"unix:{tmp_path}/fake.sock") as link:
        assert link.num_state_tokens == 0
        async with serving(FakeTarget(), tmp_path):
            await come_up(link)
            assert link.num_state_tokens == 54


async def test_a_cache_is_shared_equally_and_what_others_leave_is_anyones(tmp_path: Path) -> None:
    async with linked(f"unix:{tmp_path}/fake.sock") as link:
        assert link.num_cache_tokens == 0
        async with serving(FakeTarget(), tmp_path):
            await come_up(link)
            assert link.num_cache_tokens == 160
            link.load = ServerLoad(num_others=1, num_other_tokens=30)
            assert link.num_cache_tokens == 130
            link.load = ServerLoad(num_others=1, num_other_tokens=1000)
            assert link.num_cache_tokens == 80
            link.load = ServerLoad(num_others=3, num_other_tokens=1000)
            assert link.num_cache_tokens == 40
