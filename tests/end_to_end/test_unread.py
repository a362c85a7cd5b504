"""A caller who does not read holds a bounded part of the coordinator's memory, and nobody up."""

import asyncio
from dataclasses import replace
from typing import Any

import grpc
import pytest

from paceline.client import AsyncClient
from paceline.rpc.generation_messages import make_request
from paceline.sampling_params import SamplingParams
from paceline.v1 import generation_pb2_grpc
from tests.bystander import undisturbed_bystander
from tests.conftest import TINY
from tests.hosted import Host
from tests.services import Trio

pytestmark = pytest.mark.slow

PROMPT = [3, 14, 15]
# More than a megabyte.
LONG = SamplingParams(max_tokens=500, ignore_eos=True, n=12, logprobs=20, temperature=0.8, seed=1)
# More than a call may leave unread, but few enough at a time that a client keeps up on a busy machine.
READ = replace(LONG, n=4)


@pytest.fixture(scope="module")
def trio(host: Host) -> Trio:
    return host.trio(TINY, TINY, ("PACELINE_COORDINATOR_MAX_UNREAD_MEMORY=1MiB",))


def unread_channel(address: str) -> grpc.aio.Channel:
    """One that takes 64 KiB ahead of its reader, and not megabytes."""
    return grpc.aio.insecure_channel(address, options=[("grpc.http2.bdp_probe", 0)])


async def read_all(call: Any) -> None:
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_an_answer_that_nobody_reads_is_ended(trio: Trio) -> None:
    bystander = SamplingParams(max_tokens=300, ignore_eos=True)
    async with AsyncClient(trio.address) as client, unread_channel(trio.address) as channel:
        async with undisturbed_bystander(trio.address, PROMPT, bystander):
            call = generation_pb2_grpc.GenerationStub(channel).Generate(make_request(PROMPT, LONG, None, False))
            await call.read()
            # Its generations are over long before it reads on.
            async with asyncio.timeout(60):
                while (await client.describe()).running > 1:
                    await asyncio.sleep(0.05)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await read_all(call)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "bytes of this answer were not read; at most 262144 are kept" in refused.value.details()


async def test_one_that_is_read_comes_whole_however_long(trio: Trio) -> None:
    async with AsyncClient(trio.address) as client:
        answers = await client.complete_all(PROMPT, READ)
    assert [len(each.token_ids) for each in answers] == [READ.max_tokens] * READ.n
