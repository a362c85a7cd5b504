"""Answers about long prompts: no message grows with the prompt, so none is more than a client or the transport takes."""

from collections.abc import Iterator
from dataclasses import dataclass

import grpc
import numpy as np
import pytest

from paceline.client import AsyncClient
from paceline.rpc.channel import CLIENT_OPTIONS
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2, generation_pb2_grpc
from tests.bystander import undisturbed_bystander
from tests.conftest import SMALL_FLAGS
from tests.hosted import Host, HostedService
from tests.model_folder import write_model
from tests.serving.raw_session import RawSession, verify

pytestmark = pytest.mark.slow

# With 20 likeliest tokens of an id of two bytes a position takes 120 bytes or more: 600 KB in all.
PROMPT = [(7 * i * i + 3 * i + 1) % 512 for i in range(5_000)]
NUM_TOP = 20
MAX_ANSWER_BYTES = 400_000
SCORED = SamplingParams(max_tokens=2, ignore_eos=True, prompt_logprobs=NUM_TOP)


@dataclass(frozen=True, slots=True)
class Services:
    target: HostedService
    coordinator: HostedService


@pytest.fixture(scope="module")
def services(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Services:
    """Over a tiny model that holds long prompts."""
    folder = tmp_path_factory.mktemp("long")
    write_model(folder, max_position_embeddings=8192)
    target = host.start("target_server", "--model", str(folder), *SMALL_FLAGS, "--check-integrity")
    return Services(target, host.start("coordinator", "--target", target.address, "--draft", "none"))


def raw_parts(target: HostedService) -> Iterator[list[float]]:
    """What the target says of the prompt, answer after answer."""
    session = RawSession(target)

    def fill(command: object) -> None:
        verify(0, PROMPT, rule=1)(command)
        command.verify.prompt_logprobs = NUM_TOP  # type: ignore[attr-defined]

    session.send(session.open(0), fill)
    for response in session.responses():
        for answer in response.answers:
            kind = answer.WhichOneof("answer")
            assert kind in ("prompt_logprobs", "verify_result"), answer
            # Answers share a message until it has a megabyte.
            assert answer.ByteSize() < MAX_ANSWER_BYTES
            part = answer.prompt_logprobs if kind == "prompt_logprobs" else answer.verify_result.prompt_logprobs
            assert len(part.top_token_ids) == NUM_TOP * len(part.chosen) // 4
            yield np.frombuffer(part.chosen, "<f4").tolist()
            if kind == "verify_result":
                session.close()
                return


async def test_a_long_prompts_log_probabilities_come_in_messages_that_any_client_takes(services: Services) -> None:
    parts = list(raw_parts(services.target))
    assert len(parts) > 2
    wanted = [each for part in parts for each in part]
    assert len(wanted) == len(PROMPT) - 1

    responses = []
    options = [*CLIENT_OPTIONS, ("grpc.max_receive_message_length", MAX_ANSWER_BYTES)]
    request = generation_pb2.GenerateRequest(
        token_ids={"ids": PROMPT}, sampling={"max_tokens": 2, "ignore_eos": True, "n": 2, "prompt_logprobs": NUM_TOP}
    )
    beside = undisturbed_bystander(
        services.coordinator.address, [3, 14, 15], SamplingParams(max_tokens=200, ignore_eos=True)
    )
    async with beside, grpc.aio.insecure_channel(services.coordinator.address, options=options) as channel:
        async for response in generation_pb2_grpc.GenerationStub(channel).Generate(request):
            responses.append(response)
    scored = [each for response in responses for each in response.prompt_logprobs]
    assert [each.logprob for each in scored] == wanted
    assert {len(each.top_token_ids) for each in scored} == {NUM_TOP}
    of_prompt = [response for response in responses if response.prompt_logprobs]
    assert {response.index for response in of_prompt} == {0}
    # What comes ahead holds nothing else, and the first round has the rest.
    assert [len(response.token_ids) for response in of_prompt] == [0] * (len(of_prompt) - 1) + [1]
    assert not any(response.HasField("finish") for response in of_prompt[:-1])


async def test_the_client_gives_a_long_prompts_log_probabilities_whole(services: Services) -> None:
    plain = SpeculationParams(enabled=False)
    async with AsyncClient(services.coordinator.address) as client:
        done = await client.complete(PROMPT, SCORED, plain)
        bare = await client.complete(PROMPT, SamplingParams(max_tokens=2, ignore_eos=True), plain)
    assert len(done.prompt_logprobs) == len(PROMPT) - 1
    assert (done.token_ids, done.text) == (bare.token_ids, bare.text)
