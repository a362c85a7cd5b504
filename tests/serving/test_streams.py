"""What both model servers promise alike of their streams, beyond the single commands in `test_session`."""

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from paceline.rpc.channel import MAX_COMMANDS
from paceline.v1 import model_pb2
from tests.conftest import TINY
from tests.hosted import Host, HostedService
from tests.services import running, spawn_service
from tests.serving.raw_session import RawSession, opening, propose, release, substance_of, truncate, verify

VOCAB_SIZE = 512
CANCELLED, INVALID_ARGUMENT, NOT_FOUND, RESOURCE_EXHAUSTED = 1, 3, 5, 8
FAILED_PRECONDITION, ABORTED = 9, 10
# 32 rows a step: a long prompt takes 16 steps, and sixty of them most of a thousand.
SLOWLY = (*TINY, "--max-num-batched-tokens", "32")
EIGHT_BLOCKS = str(8 * 16 * 512)


@pytest.fixture(params=["draft_server", "target_server"])
def service(request: pytest.FixtureRequest) -> HostedService:
    return request.getfixturevalue(request.param)


@pytest.fixture
def session(service: HostedService) -> Iterator[RawSession]:
    opened = RawSession(service)
    yield opened
    opened.close()


def work(service: HostedService, position: int, tail: list[int]) -> Callable[[Any], None]:
    """The server's own command; it adds exactly `tail` to the cache."""
    return propose(position, tail, 1) if service.module == "draft_server" else verify(position, tail)


def failure(answer: Any) -> Any:
    assert answer.WhichOneof("answer") == "failure", answer
    return answer.failure


def wait_for_blocks_in_use(session: RawSession, expected: int) -> None:
    """What needs no answer takes effect at the next engine step."""
    deadline_s = time.monotonic() + 20
    while (used := (model_info := session.describe()).total_blocks - model_info.free_blocks) != expected:
        assert time.monotonic() < deadline_s, f"{used} blocks are in use, not {expected}"
        time.sleep(0.005)


def test_sessions_have_names_of_their_own_and_the_process_has_one(session: RawSession, service: HostedService) -> None:
    other = RawSession(service)
    assert session.session_info.session_id != other.session_info.session_id
    assert session.session_info.instance_id == other.session_info.instance_id
    other.close()


def test_every_command_for_an_unknown_sequence_is_not_found(session: RawSession, service: HostedService) -> None:
    for command in (work(service, 0, [1]), truncate(0), release):
        error = failure(session.ask(77, command))
        assert error.status.code == NOT_FOUND
        assert not error.HasField("cache_length")


def test_sequence_ids_belong_to_their_stream(session: RawSession, service: HostedService) -> None:
    other = RawSession(service)
    sequence = session.open()
    session.ask(sequence, work(service, 0, [5, 6, 7]))
    assert failure(other.ask(sequence, work(service, 3, [8]))).status.code == NOT_FOUND
    other.close()


def test_an_open_that_bans_tokens_outside_the_vocabulary_is_refused(session: RawSession) -> None:
    """Let through, it would fail every sequence's job in the engine step that bans them."""

    def banning(command: Any, eos: list[int], stop: list[int]) -> None:
        opening()(command)
        command.open.sampling.min_tokens = 9
        command.open.eos_token_ids.extend(eos)
        command.open.sampling.stop_token_ids.extend(stop)

    for name, eos, stop in (("eos_token_ids", [0, VOCAB_SIZE], []), ("stop_token_ids", [], [VOCAB_SIZE])):
        error = failure(session.ask(1, lambda command, eos=eos, stop=stop: banning(command, eos, stop)))
        assert error.status.code == INVALID_ARGUMENT
        assert f"{name} is {VOCAB_SIZE}" in error.status.message
        assert f"[0, {VOCAB_SIZE})" in error.status.message


def test_support_outside_the_vocabulary_is_refused_by_name(target_server: HostedService) -> None:
    session = RawSession(target_server)
    error = failure(session.ask(session.open(), verify(0, [1], [2], support=[VOCAB_SIZE])))
    assert error.status.code == INVALID_ARGUMENT
    assert f"support_token_ids is {VOCAB_SIZE}" in error.status.message
    session.close()


def test_commands_sent_without_waiting_are_carried_out_in_order(session: RawSession, service: HostedService) -> None:
    sequence, fresh = session.open(), session.open()
    steps = work(service, 0, [1] * 40), work(service, 40, [2] * 20), truncate(45), work(service, 45, [3, 4])
    last = session.send(sequence, *steps)[-1]
    expected = session.ask(fresh, work(service, 0, [1] * 40 + [2] * 5 + [3, 4]))
    assert session.answer(last).WhichOneof("answer") != "failure"
    again = session.send(sequence, truncate(0), work(service, 0, [1] * 40 + [2] * 5 + [3, 4]))[-1]
    assert substance_of(session.answer(again)) == substance_of(expected)


def test_what_waits_behind_a_failure_is_aborted_and_a_retry_repeats_the_answer(
    session: RawSession, service: HostedService
) -> None:
    sequence, twin = session.open(), session.open()
    for one in (sequence, twin):
        session.ask(one, work(service, 0, [5, 6, 7]))
    expected = substance_of(session.ask(twin, work(service, 3, [8])))
    first, *later = session.send(sequence, work(service, 9, [8]), work(service, 3, [8]), work(service, 9, [8]))
    assert failure(session.answer(first)).status.code == FAILED_PRECONDITION
    for error in (failure(session.answer(command)) for command in later):
        assert error.status.code == ABORTED
        assert "position is 9" in error.status.message
    for _ in range(2):
        again = session.send(sequence, truncate(3), work(service, 3, [8]))[-1]
        assert substance_of(session.answer(again)) == expected


@pytest.mark.parametrize("how", ["half-closed", "cancelled", "garbage"])
def test_the_end_of_a_stream_frees_all_its_blocks_and_no_others(
    session: RawSession, service: HostedService, how: str
) -> None:
    mine = session.open()
    session.ask(mine, work(service, 0, [5] * 20))
    if how == "garbage":
        # Without serializers grpc sends bytes as they are.
        with grpc.insecure_channel(service.address) as channel:
            call = channel.stream_stream("/paceline.v1.Model/Session")(garbage_after_work(service))
            with pytest.raises(grpc.RpcError) as caught:
                list(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    else:
        ending = RawSession(service)
        for _ in range(3):
            ending.ask(ending.open(), work(service, 0, [5] * 100))
        # One more that is queued or running when the stream ends.
        ending.send(ending.open(), work(service, 0, [5] * 500))
        if how == "cancelled":
            ending.responses().cancel()
        ending.close()
    wait_for_blocks_in_use(session, 2)
    assert session.ask(mine, work(service, 20, [6])).WhichOneof("answer") != "failure"


def garbage_after_work(service: HostedService) -> Iterator[bytes]:
    """A sequence with a cache, and then bytes that are no message."""
    request = model_pb2.SessionRequest()
    opening()(request.commands.add(command_id=1, sequence_id=1))
    work(service, 0, [5] * 100)(request.commands.add(command_id=2, sequence_id=1))
    yield request.SerializeToString()
    yield b"\xff\xff\xff"


def test_a_unary_truncate_heals_a_failed_sequence(session: RawSession, service: HostedService) -> None:
    sequence = session.open()
    session.ask(sequence, work(service, 0, [5] * 40))
    failure(session.ask(sequence, work(service, 7, [6])))
    names = {"session_id": session.session_info.session_id, "sequence_id": sequence}
    assert session.stub.Truncate(model_pb2.TruncateRequest(**names, length=17)).cache_length == 17
    assert session.ask(sequence, work(service, 17, [6])).WhichOneof("answer") != "failure"
    wait_for_blocks_in_use(session, 2)


@pytest.mark.parametrize("name", ["nobody", "n" * 1_000_000])
def test_an_unknown_session_is_not_found(session: RawSession, name: str) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        session.stub.Truncate(model_pb2.TruncateRequest(session_id=name, sequence_id=1, length=0))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND
    assert "session 'n" in caught.value.details()
    assert len(caught.value.details()) < 300


def test_a_message_of_too_many_commands_ends_its_stream_alone(session: RawSession, service: HostedService) -> None:
    """Answered one by one, the eight million empty commands that fit into a message would take all memory."""
    other = RawSession(service)
    sequence = other.open()
    session.send_together([(1, release)] * (MAX_COMMANDS + 1))
    with pytest.raises(grpc.RpcError) as caught:
        list(session.responses())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert f"commands is '{MAX_COMMANDS + 1} commands in a message'" in caught.value.details()
    answers = [failure(other.answer(each)) for each in other.send_together([(77, release)] * MAX_COMMANDS)]
    assert {error.status.code for error in answers} == {NOT_FOUND}
    assert other.ask(sequence, work(service, 0, [5])).WhichOneof("answer") != "failure"
    other.close()


def test_a_support_of_more_ids_than_an_answer_should_hold_is_refused(target_server: HostedService) -> None:
    session = RawSession(target_server)
    sequence = session.open()

    def fill(command: Any) -> None:
        verify(0, [1], [2])(command)
        command.verify.support_token_ids.extend([3] * 262_144)

    error = failure(session.ask(sequence, fill))
    assert error.status.code == INVALID_ARGUMENT
    assert "support_token_ids is '262145 ids'; it must be at most 262144 ids" in error.status.message
    session.close()


def test_without_min_tokens_no_token_is_banned_wherever_the_prompt_ends(
    session: RawSession, service: HostedService
) -> None:
    """Else nothing could be drawn here: the one token that is allowed ends a text."""

    def only(command: Any) -> None:
        opening()(command)
        command.open.num_prompt_tokens = 400
        command.open.sampling.allowed_token_ids.append(9)
        command.open.sampling.stop_token_ids.append(9)

    sequence = 10**6
    assert session.ask(sequence, only).WhichOneof("answer") == "open_ack"
    answer = session.ask(sequence, work(service, 0, [5, 6]))
    tokens = answer.proposal.tokens if service.module == "draft_server" else answer.verify_result.tokens
    assert list(tokens) == [9], answer


def test_a_release_drops_what_is_queued_and_running_and_answers_it(host: Host) -> None:
    session = RawSession(host.start("target_server", *SLOWLY))
    sequences = [session.open() for _ in range(60)]
    ids = [session.send(sequence, verify(0, [5] * 500))[0] for sequence in sequences]
    # The first sign of life: work is going on, and far from done.
    first = next(session.responses())
    for sequence in sequences:
        session.send(sequence, release)
    done = {answer.command_id for answer in first.answers}
    answers = [session.answer(command_id) for command_id in ids if command_id not in done]
    dropped = [answer for answer in answers if answer.WhichOneof("answer") == "failure"]
    assert dropped, "all sixty prompts were through before they could be released"
    assert {answer.failure.status.code for answer in dropped} == {CANCELLED}
    wait_for_blocks_in_use(session, 0)
    session.close()


@pytest.fixture
def crowded(host: Host) -> Iterator[tuple[RawSession, RawSession]]:
    """Two streams of a draft server with a cache of 8 blocks of 16 tokens."""
    service = host.start("draft_server", *TINY, "--kv-cache-memory", EIGHT_BLOCKS)
    sessions = RawSession(service), RawSession(service)
    yield sessions
    for session in sessions:
        session.close()


def test_without_room_the_youngest_idle_sequence_of_any_stream_is_preempted(
    crowded: tuple[RawSession, RawSession],
) -> None:
    ours, theirs = crowded
    oldest, middle, youngest = ours.open(), ours.open(), theirs.open()
    ours.ask(oldest, propose(0, [1] * 48, 1))
    theirs.ask(youngest, propose(0, [1] * 16, 1))
    # One block more than is free.
    ours.ask(middle, propose(0, [1] * 80, 1))
    preempted = failure(theirs.ask(youngest, propose(16, [2], 1)))
    assert (preempted.status.code, preempted.cache_length) == (FAILED_PRECONDITION, 0)
    assert ours.ask(middle, truncate(81)).failure.cache_length == 80
    assert ours.ask(oldest, truncate(49)).failure.cache_length == 48


def test_what_does_not_fit_is_refused_and_evicts_nobody(crowded: tuple[RawSession, RawSession]) -> None:
    ours, theirs = crowded
    kept, wanting = theirs.open(), ours.open()
    theirs.ask(kept, propose(0, [1] * 48, 1))
    ours.ask(wanting, propose(0, [1] * 40, 1))
    refused = failure(ours.ask(wanting, propose(40, [2] * 100, 1)))
    assert (refused.status.code, refused.cache_length) == (RESOURCE_EXHAUSTED, 40)
    assert theirs.ask(kept, propose(48, [2], 1)).WhichOneof("answer") == "proposal"
    ours.send(wanting, truncate(40))
    assert ours.ask(wanting, propose(40, [2], 1)).WhichOneof("answer") == "proposal"


def wait_for_others(session: RawSession, *expected: int) -> None:
    deadline_s = time.monotonic() + 20
    while (found := (session.load.others.num_generations, session.load.others.reserved_tokens)) != expected:
        assert time.monotonic() < deadline_s, f"others need {found}, not {expected}"
        session.receive()


def test_each_stream_is_told_what_the_others_need_until_they_end(session: RawSession, service: HostedService) -> None:
    others = [RawSession(service) for _ in range(2)]
    for other in others:
        other.need(3, 1000)
    session.need(50, 70)
    wait_for_others(session, 6, 2000)
    assert session.load.num_others == 2
    wait_for_others(others[0], 53, 1070)
    others[1].need(4, 2**64 - 1)
    wait_for_others(session, 7, 2**32 - 1)
    # Commands without a word of it change nothing.
    others[0].open()
    wait_for_others(others[0], 54, 2**32 - 1)
    others[1].close()
    wait_for_others(session, 3, 1000)
    others[0].close()
    wait_for_others(session, 0, 0)


def test_a_server_says_how_many_blocks_are_free_and_how_busy_it_is(session: RawSession, service: HostedService) -> None:
    total = session.describe().total_blocks
    sequence = session.open()
    session.ask(sequence, work(service, 0, [7] * 33))
    deadline_s = time.monotonic() + 20
    while not (session.load.free_blocks == total - 3 and 0 < session.load.utilization < 1):
        assert time.monotonic() < deadline_s, session.load
        session.receive()
    session.send(sequence, release)
    while session.load.utilization:
        assert time.monotonic() < deadline_s, session.load
        session.receive()


def test_a_server_that_is_told_to_end_says_so_and_lets_sequences_end(tmp_path: Path) -> None:
    service = spawn_service("target_server", tmp_path, *TINY)
    with running(service):
        service.wait_serving()
        session, idle = RawSession(service), RawSession(service)
        sequence = session.open()
        session.ask(sequence, verify(0, [5, 6, 7]))
        service.process.send_signal(signal.SIGTERM)
        for each in (session, idle):
            while not each.load.is_draining:
                each.receive()
        assert session.ask(sequence, verify(3, [8])).WhichOneof("answer") == "verify_result"
        assert service.process.poll() is None
        session.send(sequence, release)
        assert service.process.wait(20) == 0
