"""Frames and messages are found in bytes however they are cut, and commands by what passed."""

import random
from itertools import pairwise

import pytest

from paceline.v1 import model_pb2
from tests.faults.frames import END_STREAM, PREFACE, Frame, FrameReader, MessageReader, data_frame
from tests.faults.traffic import PROMPT_TOKENS, Traffic


def cut(data: bytes, generator: random.Random) -> list[bytes]:
    ends = sorted(generator.sample(range(1, len(data)), min(12, len(data) - 1)))
    return [data[first:end] for first, end in pairwise([0, *ends, len(data)])]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_lost_or_changed_however_bytes_are_cut(seed: int) -> None:
    generator = random.Random(seed)
    messages = [generator.randbytes(generator.randrange(40)) for _ in range(8)]
    sent = PREFACE + b"".join(data_frame(7, each) for each in messages)
    reader, joined = FrameReader(PREFACE), MessageReader()
    passed, found = b"", []
    for part in cut(sent, generator):
        for each in reader.feed(part):
            passed += each.data if isinstance(each, Frame) else each
            found += joined.feed(each.payload) if isinstance(each, Frame) else []
    assert passed == sent
    assert found == messages


def test_a_message_may_take_several_frames() -> None:
    reader = MessageReader()
    whole = Frame(data_frame(1, b"abcdef")).payload
    assert reader.feed(whole[:7]) == []
    assert not reader.is_between
    assert reader.feed(whole[7:] + whole[:3]) == [b"abcdef"]


def test_padding_is_no_part_of_a_message() -> None:
    plain = data_frame(1, b"abc")
    payload = bytes([2]) + plain[9:] + b"\0\0"
    padded = len(payload).to_bytes(3, "big") + bytes([0, 8]) + plain[5:9] + payload
    assert MessageReader().feed(Frame(padded).payload) == [b"abc"]


def verify(command_id: int, num_tail_tokens: int) -> bytes:
    request = model_pb2.SessionRequest()
    request.commands.add(command_id=99, sequence_id=1).truncate.SetInParent()
    command = request.commands.add(command_id=command_id, sequence_id=1)
    command.verify.tail_tokens.extend([1] * num_tail_tokens)
    return request.SerializeToString()


def test_a_command_is_with_the_server_until_its_answer_comes() -> None:
    traffic = Traffic()
    commands = traffic.commands_in(Frame(data_frame(3, verify(5, PROMPT_TOKENS))))
    assert [(each.command_id, each.reads_prompt) for each in commands] == [(5, True)]
    traffic.note_passed(commands)
    heartbeat = model_pb2.SessionResponse(engine_steps=1).SerializeToString()
    assert traffic.note_answers(Frame(data_frame(3, heartbeat))) == []
    assert traffic.has_with_server(lambda each: each.reads_prompt)
    answer = model_pb2.SessionResponse()
    answer.answers.add(command_id=5).verify_result.tokens.append(1)
    assert traffic.note_answers(Frame(data_frame(3, answer.SerializeToString()))) == [5]
    assert not traffic.with_server


def test_the_answer_of_another_call_is_none_of_the_sessions() -> None:
    traffic = Traffic()
    traffic.note_passed(traffic.commands_in(Frame(data_frame(3, verify(5, 1)))))
    asked = bytearray(data_frame(1, b""))
    asked[4] = END_STREAM
    assert traffic.commands_in(Frame(bytes(asked))) == []
    answer = model_pb2.SessionResponse()
    answer.answers.add(command_id=5)
    assert traffic.note_answers(Frame(data_frame(1, answer.SerializeToString()))) == []
    assert traffic.with_server
