"""The same tokens with any drafter, any length, any batch: in every format of quantised weights."""

from pathlib import Path

import pytest

from paceline.engine.cpu.kernels.quantised.formats import BY_NAME
from tests.hosted import Host
from tests.identity import run_campaign
from tests.quantised_models import MIXED, write_model

PROMPTS = ["ABCABDABC", "HELLOXWORLDXHELLO"]
FLAGS = ("--kv-cache-memory", "16MiB", "--block-size", "16", "--threads", "1", "--check-integrity")


@pytest.mark.parametrize("name", [*BY_NAME, MIXED])
async def test_output_is_the_same_with_any_drafter_any_length_any_batch(host: Host, tmp_path: Path, name: str) -> None:
    target, draft = (str(write_model(tmp_path / f"{seed}.gguf", name, seed)) for seed in (0, 1))
    trio = host.trio(("--model", target, *FLAGS), ("--model", draft, *FLAGS))
    campaign = await run_campaign(trio, name, PROMPTS, "greedy", tokens=24, alone_count=1)
    assert campaign.differing.total() == 0, campaign.differing
