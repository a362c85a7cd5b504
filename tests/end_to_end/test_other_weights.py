"""A target that comes back with another model is refused until the right one is back."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from paceline.client import AsyncClient
from paceline.errors import Unavailable
from paceline.sampling_params import SamplingParams
from tests.conftest import SMALL_FLAGS, UNLIKE_TARGET
from tests.services import Service, running, start_service

PROMPT = [3, 14, 15, 9, 2, 6]
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
OTHERS = {
    "weights": ("--model", "dummy:tiny-32-b", *SMALL_FLAGS),
    "dtype": ("--model", "dummy:tiny-32-a", *("bfloat16" if flag == "float32" else flag for flag in SMALL_FLAGS)),
    "KV cache dtype": (*UNLIKE_TARGET, "--kv-cache-dtype", "int8"),
}


@pytest.mark.slow
async def test_other_weights_and_another_dtype_are_refused_and_the_right_ones_taken(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:

        def start(module: str, *flags: str, address: str = "") -> Service:
            service = start_service(module, tmp_path, *flags, address=address)
            stack.enter_context(running(service))
            return service

        target = start("target_server", *UNLIKE_TARGET)
        coordinator = start("coordinator", "--target", target.address, "--draft", "none", "--target-timeout", "3")
        async with AsyncClient(coordinator.address) as client:
            expected = (await client.complete(PROMPT, GREEDY)).token_ids
            for name, flags in OTHERS.items():
                target.kill()
                target = await asyncio.to_thread(start, "target_server", *flags, address=target.address)
                with pytest.raises(Unavailable, match=f"has another {name}: .*start the coordinator again"):
                    await client.complete(PROMPT, GREEDY)
            target.kill()
            await asyncio.to_thread(start, "target_server", *UNLIKE_TARGET, address=target.address)
            assert (await client.complete(PROMPT, GREEDY)).token_ids == expected
