"""The same tokens with any drafter, any length, any batch: in every format of quantized weights, with an int8 cache, and with
transformers' modules."""

from pathlib import Path

import pytest

from paceline.client import AsyncClient
from paceline.engine.cpu.kernels.quantized.packing import BY_NAME
from tests.hosted import Host
from tests.identity import run_campaign
from tests.quantized_models import MIXED, write_model
from tests.services import Trio
from tests.slices import slice_of

pytestmark = pytest.mark.slow

PROMPTS = ["ABCABDABC", "HELLOXWORLDXHELLO"]
FLAGS = ("--kv-cache-memory", "16MiB", "--block-size", "16", "--threads", "1", "--check-integrity")


@pytest.mark.parametrize("name", slice_of([*BY_NAME, MIXED], ("Q4_1", "Q8_0", MIXED).__contains__))
async def test_output_is_the_same_with_any_drafter_any_length_any_batch(host: Host, tmp_path: Path, name: str) -> None:
    await check_same(start(host, tmp_path, name), alone_count=0)


async def test_output_is_the_same_with_an_int8_cache(host: Host, tmp_path: Path) -> None:
    """Prefixes are found again, and what was rejected is truncated."""
    trio = start(host, tmp_path, MIXED, "--kv-cache-dtype", "int8")
    async with AsyncClient(trio.address) as client:
        deployment = await client.describe()
    assert deployment.draft is not None
    assert [model.kv_cache_dtype for model in (deployment.target, deployment.draft)] == ["int8", "int8"]
    await check_same(trio, alone_count=1)


async def test_output_is_the_same_with_transformers_modules(host: Host, tmp_path: Path) -> None:
    trio = start(host, tmp_path, MIXED, "--implementation", "transformers")
    async with AsyncClient(trio.address) as client:
        deployment = await client.describe()
    assert deployment.draft is not None
    assert [model.implementation for model in (deployment.target, deployment.draft)] == ["transformers"] * 2
    await check_same(trio, alone_count=1)


def start(host: Host, folder: Path, name: str, *more: str) -> Trio:
    target, draft = (str(write_model(folder / f"{seed}.gguf", name, seed)) for seed in (0, 1))
    return host.trio(("--model", target, *FLAGS, *more), ("--model", draft, *FLAGS, *more))


async def check_same(trio: Trio, alone_count: int) -> None:
    campaign = await run_campaign(trio, "", PROMPTS, "greedy", tokens=16, alone_count=alone_count)
    assert campaign.compared.total() > 0
    assert campaign.differing.total() == 0, campaign.differing
