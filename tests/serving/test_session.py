"""The Session stream and the unary commands, as proto/ says, against real servers."""

import os
import queue
import time
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.rpc.model_messages import PROTOCOL_VERSION
from paceline.v1 import model_pb2
from tests.conftest import TINY
from tests.hosted import Host, HostedService
from tests.services import running, start_service
from tests.serving.raw_session import RawSession, opening, propose, release, substance_of, truncate, verify

MATCH = 1
CODES = {code.value[0]: code.name for code in grpc.StatusCode}


def one_support_too_many(command: Any) -> None:
    verify(0, [1], [2], support=[3])(command)
    command.verify.support_sizes.append(1)


def failure_of(answer) -> tuple[str, str]:
    assert answer.WhichOneof("answer") == "failure", answer
    return CODES[answer.failure.status.code], answer.failure.status.message


def wait_until_all_free(session: RawSession) -> None:
    for _ in range(1000):
        model_info = session.describe()
        if model_info.free_blocks == model_info.total_blocks:
            return
        time.sleep(0.01)
    raise AssertionError(f"{model_info.free_blocks} of {model_info.total_blocks} blocks are free")


def test_hello_comes_first_and_names_the_instance(target: RawSession) -> None:
    assert target.session_info.session_id
    assert target.session_info.instance_id == target.describe().instance_id


def test_servers_on_the_same_cores_name_the_same_devices(target: RawSession, draft: RawSession) -> None:
    ids = list(target.describe().device_ids)
    assert len(ids) == len(os.sched_getaffinity(0))
    assert ids == list(draft.describe().device_ids)


def test_drafts_without_supports_are_answered_by_match_before_those_with(target: RawSession) -> None:
    """Each part as if there were no other."""

    def mixed(command: Any) -> None:
        verify(0, [1, 2, 3], [4, 5], rule=MATCH)(command)
        verify(0, [], [6, 7], support=[8, 9])(command)

    tail, looked_up = [1, 2, 3], [4, 5]
    verify_result = target.ask(target.open(), mixed).verify_result
    matched = target.ask(target.open(), verify(0, tail, looked_up, rule=MATCH)).verify_result
    assert list(verify_result.tokens)[:2] == list(matched.tokens)[:2]
    assert (len(verify_result.tokens), len(verify_result.outside_tokens)) == (3, 2)
    # Where a round begins is a part of its noise, and not of p.
    weighed = target.ask(target.open(), verify(0, [*tail, *looked_up], [6, 7], support=[8, 9])).verify_result
    assert (verify_result.support_probs, verify_result.outside_masses) == (
        weighed.support_probs,
        weighed.outside_masses,
    )


def test_a_gap_in_positions_is_refused_with_both_numbers(target: RawSession) -> None:
    sequence = target.open()
    target.ask(sequence, verify(0, [1, 2, 3]))
    answer = target.ask(sequence, verify(5, [4]))
    assert failure_of(answer) == ("FAILED_PRECONDITION", "position is 5, but the cache holds 3 tokens")
    assert answer.failure.cache_length == 3


def test_an_unknown_sequence_is_not_found(target: RawSession) -> None:
    assert failure_of(target.ask(99, verify(0, [1]))) == ("NOT_FOUND", "sequence 99 is not open")


def test_a_sequence_id_is_never_reused(target: RawSession) -> None:
    sequence = target.open()
    target.send(sequence, release)
    code, message = failure_of(target.ask(sequence, opening()))
    assert code == "INVALID_ARGUMENT"
    assert "sequence_id" in message


def test_an_open_without_a_seed_is_refused_by_name(target: RawSession) -> None:
    code, message = failure_of(target.ask(1, lambda command: command.open.SetInParent()))
    assert code == "INVALID_ARGUMENT"
    assert "sampling.seed" in message


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (verify(0, [512]), ["tail_tokens is 512", "[0, 512)"]),
        (verify(0, [1], [600], rule=MATCH), ["draft_tokens is 600", "[0, 512)"]),
        (verify(0, []), ["tail_tokens", "at least one"]),
        (verify(0, [1], [2] * 17, rule=MATCH), ["draft_tokens", "at most 16"]),
        (one_support_too_many, ["support_sizes is '2 sizes'", "at most one for each of 1 drafts"]),
        (verify(0, [1], rule=0), ["rule is 0", "match, rejection"]),
        (verify(0, [1] * 513), ["513 tokens", "maximum is 512"]),
    ],
)
def test_a_bad_verify_names_field_and_range(target: RawSession, command, parts: list[str]) -> None:
    sequence = target.open()
    code, message = failure_of(target.ask(sequence, command))
    assert code in ("INVALID_ARGUMENT", "OUT_OF_RANGE")
    for part in parts:
        assert part in message


@pytest.mark.parametrize("wanted", [0, 17])
def test_a_bad_propose_names_field_and_range(draft: RawSession, wanted: int) -> None:
    code, message = failure_of(draft.ask(draft.open(), propose(0, [1], wanted)))
    assert code == "INVALID_ARGUMENT"
    assert f"num_draft_tokens is {wanted}; it must be in [1, 16]" in message


def test_after_a_failure_everything_is_aborted_until_a_truncate(target: RawSession) -> None:
    sequence = target.open()
    good = verify(0, [1, 2, 3], [4, 5], support=[6])
    first = target.ask(sequence, good)
    assert failure_of(target.ask(sequence, truncate(6)))[0] == "OUT_OF_RANGE"
    code, message = failure_of(target.ask(sequence, verify(5, [1])))
    assert code == "ABORTED"
    assert "length is 6" in message
    target.send(sequence, truncate(0))
    assert substance_of(target.ask(sequence, good)) == substance_of(first)


def test_a_retried_propose_gives_the_same_answer(draft: RawSession) -> None:
    sequence = draft.open(temperature=1.0)
    first = draft.ask(sequence, propose(0, [1, 2, 3], 5))
    draft.send(sequence, truncate(0))
    assert substance_of(draft.ask(sequence, propose(0, [1, 2, 3], 5))) == substance_of(first)
    assert list(first.proposal.support_sizes)


def test_a_proposal_sums_to_one_on_each_support_and_holds_its_token(draft: RawSession) -> None:
    import numpy as np

    proposal = draft.ask(draft.open(), propose(0, [7], 6)).proposal
    ends = np.cumsum(proposal.support_sizes)[:-1]
    probs = np.split(np.frombuffer(proposal.support_probs, "<f4"), ends)
    supports = np.split(np.array(proposal.support_token_ids), ends)
    for token, support, q in zip(proposal.tokens, supports, probs, strict=True):
        assert token in support
        assert abs(q.sum() - 1) < 1e-5


def test_release_drops_a_long_prefill_at_once(target: RawSession) -> None:
    sequences = [target.open() for _ in range(12)]
    ids = [target.send(sequence, verify(0, [5] * 500), release)[0] for sequence in sequences]
    answers = [target.answer(command_id) for command_id in ids]
    dropped = [answer for answer in answers if answer.WhichOneof("answer") == "failure"]
    assert dropped, "released in the same message, they can't all have run"
    assert {failure_of(answer)[0] for answer in dropped} == {"CANCELLED"}
    wait_until_all_free(target)


def test_the_end_of_a_stream_releases_all_it_opened(target_server: HostedService, target: RawSession) -> None:
    other = RawSession(target_server)
    other.ask(other.open(), verify(0, [1] * 100))
    assert target.describe().free_blocks < target.describe().total_blocks
    other.close()
    wait_until_all_free(target)


def test_unary_truncate_and_release_name_the_session(target: RawSession) -> None:
    sequence = target.open()
    target.ask(sequence, verify(0, [1] * 40))
    named = {"session_id": target.session_info.session_id, "sequence_id": sequence}
    assert target.stub.Truncate(model_pb2.TruncateRequest(**named, length=7)).cache_length == 7
    with pytest.raises(grpc.RpcError) as caught:
        target.stub.Truncate(model_pb2.TruncateRequest(**named, length=8))
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE
    target.stub.Release(model_pb2.ReleaseRequest(**named))
    with pytest.raises(grpc.RpcError) as caught:
        target.stub.Release(model_pb2.ReleaseRequest(**named))
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_garbage_ends_only_its_own_stream(target_server: HostedService, target: RawSession) -> None:
    with grpc.insecure_channel(target_server.address) as channel:
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        call = channel.stream_stream("/paceline.v1.Model/Session")(iter(requests.get, None))
        next(call)
        requests.put(b"\xff\xff\xff")
        with pytest.raises(grpc.RpcError) as caught:
            # Heartbeats may come before.
            list(call)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        requests.put(None)
    assert target.ask(target.open(), verify(0, [1])).WhichOneof("answer") == "verify_result"


def test_without_room_the_youngest_idle_sequence_is_preempted(host: Host) -> None:
    ten_blocks = str(10 * 16 * 512)
    session = RawSession(host.start("target_server", *TINY, "--kv-cache-memory", ten_blocks))
    old, young = session.open(), session.open()
    session.ask(old, verify(0, [1] * 64))
    session.ask(young, verify(0, [2] * 64))
    session.ask(old, verify(64, [1] * 40))
    answer = session.ask(young, verify(64, [2]))
    assert failure_of(answer)[0] == "FAILED_PRECONDITION"
    assert answer.failure.cache_length == 0
    assert session.ask(old, verify(104, [1])).WhichOneof("answer") == "verify_result"
    session.close()


def test_describe_and_health(target_server: HostedService, target: RawSession) -> None:
    model_info = target.describe()
    assert (model_info.name, model_info.dtype, model_info.vocab_size, model_info.block_size) == (
        "dummy:tiny",
        "float32",
        512,
        16,
    )
    assert model_info.max_model_len == 512
    assert list(model_info.eos_token_ids) == [0]
    assert model_info.batch_invariant
    health = health_pb2_grpc.HealthStub(target.channel)
    for name in ("", "paceline.v1.Model"):
        status = health.Check(health_pb2.HealthCheckRequest(service=name)).status
        assert status == health_pb2.HealthCheckResponse.SERVING


@pytest.mark.parametrize("service", ["Draft", "Target"])
def test_a_coordinator_of_an_older_protocol_is_told_the_version(target: RawSession, service: str) -> None:
    """It asks a service of before, and itself names both versions."""
    answer = target.channel.unary_unary(f"/paceline.v1.{service}/Describe")(b"")
    assert model_pb2.ModelInfo.FromString(answer) == model_pb2.ModelInfo(protocol_version=PROTOCOL_VERSION)


def test_the_tokenizer_streams_whole_files(target: RawSession) -> None:
    files: dict[str, bytes] = {}
    for chunk in target.stub.Tokenizer(model_pb2.TokenizerRequest()):
        files[chunk.file_name] = files.get(chunk.file_name, b"") + chunk.data
    assert b'"t511"' in files["tokenizer.json"]


def test_sigterm_answers_what_was_sent_and_ends_the_stream(tmp_path: Path) -> None:
    service = start_service("target_server", tmp_path, *TINY)
    with running(service):
        session = RawSession(service)
        sequences = [session.open() for _ in range(8)]
        # One message: when its first command is answered the server has taken them all.
        ids = session.send_together([(sequence, verify(0, [5] * 500)) for sequence in sequences])
        session.answer(ids[0])
        service.process.terminate()
        for command_id in ids[1:]:
            assert session.answer(command_id).WhichOneof("answer") == "verify_result"
        session.send_together([(sequence, release) for sequence in sequences])
        assert not any(response.answers for response in session.responses())
        assert service.process.wait(timeout=30) == 0
