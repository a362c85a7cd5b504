"""Requests far larger than any model can use: refused by name before anything is done for them, on all three servers."""

from collections.abc import Callable, Iterator

import grpc
import pytest

from paceline.client import AsyncClient
from paceline.rpc.channel import open_channel
from paceline.sampling_params import SamplingParams
from paceline.v1 import generation_pb2, generation_pb2_grpc
from tests.bystander import undisturbed_bystander
from tests.services import Service, Trio
from tests.serving.raw_session import RawSession, opening, propose, truncate, verify

PROMPT = [3, 14, 15]
BYSTANDER = SamplingParams(max_tokens=60, ignore_eos=True)
# A message may have 16 MiB.
LONG = "word " * 3_000_000
MANY_IDS = [1] * 5_000_000


def request(**fields: object) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(**({"token_ids": {"ids": PROMPT}} | fields))


def chat(*messages: tuple[str, str]) -> generation_pb2.GenerateRequest:
    return generation_pb2.GenerateRequest(chat={"messages": [{"role": r, "content": c} for r, c in messages]})


# What is sent, and parts of the one line that comes back. The tiny model holds 512 tokens.
OVERSIZED: dict[str, tuple[Callable[[], generation_pb2.GenerateRequest], list[str]]] = {
    "text": (
        lambda: generation_pb2.GenerateRequest(text=LONG),
        ["text is '15000000 characters'", "at most 16384 characters"],
    ),
    "a message": (
        lambda: chat(("user", LONG)), ["chat.messages is '15000004 characters'", "at most 16384 characters"],
    ),
    "messages": (lambda: chat(*[("user", "")] * 1_000_000), ["chat.messages is '1000000 messages'", "at most 4096"]),
    "a role": (lambda: chat((LONG, "t1")), ["chat.messages.role is 'word", "one of system, developer, user, assistant, tool"]),
    "token ids": (
        lambda: generation_pb2.GenerateRequest(token_ids={"ids": MANY_IDS}),
        ["prompt is '5000000 tokens'", "at most 512 tokens"],
    ),
    "a request's id": (lambda: request(request_id=LONG), ["request_id is '15000000 characters'", "at most 256"]),
    "a request's salt": (lambda: request(cache_salt=LONG), ["cache_salt is '15000000 characters'", "at most 256"]),
    "a stop string": (lambda: request(sampling={"stop": [LONG]}), ["stop is 'word word", "1 to 1024 characters"]),
    "stop strings": (
        lambda: request(sampling={"stop": ["x"] * 2_000_000}), ["stop is '2000000 strings'", "at most 64 strings"],
    ),
    **{
        name: (
            lambda name=name: request(sampling={name: MANY_IDS}),
            [f"{name} is '5000000 token ids'", "at most 16384 token ids"],
        )
        for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids")
    },
    "biases": (
        lambda: request(sampling={"logit_bias": dict.fromkeys(range(1_000_000), 1.0)}),
        ["logit_bias is '1000000 token ids'", "at most 16384 token ids"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OVERSIZED)
async def test_an_oversized_request_is_refused_by_name_and_a_bystander_goes_on(name: str, tiny_trio: Trio) -> None:
    make, parts = OVERSIZED[name]
    message = make()
    beside = undisturbed_bystander(tiny_trio.address, PROMPT, BYSTANDER)
    async with beside, open_channel(tiny_trio.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await generation_pb2_grpc.GenerationStub(channel).Generate(message).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert [part for part in parts if part not in caught.value.details()] == []
    assert len(caught.value.details()) < 300


async def test_repeated_ids_count_once(tiny_trio: Trio) -> None:
    """The lists are sets: what a client repeats changes nothing."""
    async with AsyncClient(tiny_trio.address) as client:
        once, often = [
            await client.complete(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True, allowed_token_ids=ids))
            for ids in ((5, 7, 9), (5, 7, 5, 9, 9, 9))
        ]
    assert once.token_ids == often.token_ids


@pytest.fixture(params=["draft", "target"])
def session(request: pytest.FixtureRequest, tiny_trio: Trio) -> Iterator[RawSession]:
    service: Service = getattr(tiny_trio, request.param)
    session = RawSession(service)
    yield session
    session.close()


@pytest.mark.parametrize("name", ["allowed_token_ids", "banned_token_ids", "stop_token_ids", "eos_token_ids"])
def test_a_model_server_refuses_to_open_a_sequence_with_too_many_ids(name: str, session: RawSession) -> None:
    def fill(command: object) -> None:
        opening()(command)
        owner = command.open if name == "eos_token_ids" else command.open.sampling  # type: ignore[attr-defined]
        getattr(owner, name).extend(MANY_IDS)

    answer = session.ask(1, fill)
    assert f"{name} is '5000000 token ids'; it must be at most 16384 token ids" in answer.failure.status.message
    assert answer.failure.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]


@pytest.mark.parametrize("name", ["cache_salt", "request_id", "traceparent"])
def test_a_model_server_refuses_to_open_a_sequence_with_too_long_a_text(name: str, session: RawSession) -> None:
    def fill(command: object) -> None:
        opening()(command)
        setattr(command.open, name, "x" * 257)  # type: ignore[attr-defined]

    answer = session.ask(1, fill)
    assert answer.failure.status.message == f"{name} is '257 characters'; it must be at most 256 characters"


def test_a_model_server_refuses_a_tail_that_no_sequence_can_hold(session: RawSession) -> None:
    sequence, is_draft = session.open(), session.describe().role == "draft"
    answer = session.ask(sequence, propose(0, MANY_IDS, 4) if is_draft else verify(0, MANY_IDS))
    assert "tail_tokens holds 5000000 tokens; the model's maximum is 512" in answer.failure.status.message
    session.send(sequence, truncate(0))
    good = session.ask(sequence, propose(0, [1], 4) if is_draft else verify(0, [1]))
    assert good.WhichOneof("answer") in ("proposal", "verify_result")
