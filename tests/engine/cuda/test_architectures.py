"""Each architecture's forward pass on a GPU gives the CPU engine's logits, and each row the bits it has alone."""

from pathlib import Path

import pytest
import torch

from tests.engine.cpu.test_architectures import CONFIGS, TOKENS, write_random
from tests.engine.cpu.test_llama import relative_error
from tests.engine.cuda.feeding import GpuFeeder
from tests.engine.feeding import Feeder, Rows, load_llama

# Of each kind one: Triton's interpreter takes seconds for each.
NUM_LAYERS = 2
# Past the windows' length.
LENGTH, ROUND = 45, 3
# Between them they have all that a layer may have.
QUICK = ("gemma2", "olmo3")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.campaign) for name in CONFIGS]
)
def test_logits_are_the_cpu_engines(name: str, tmp_path: Path) -> None:
    write_random(CONFIGS[name], tmp_path)
    theirs = Feeder(load_llama(str(tmp_path), num_layers=NUM_LAYERS)).feed_split(TOKENS[:LENGTH], [LENGTH])
    feeder, blocks = GpuFeeder.of(str(tmp_path), torch.float32, num_layers=NUM_LAYERS), [5, 2, 9]
    start = LENGTH - ROUND
    [first] = feeder.feed(Rows(TOKENS[:start], 0, blocks))
    [last] = feeder.feed(Rows(TOKENS[start:LENGTH], start, blocks))
    assert relative_error(torch.cat([first, last]), theirs) < 1e-4
    [alone] = feeder.feed(Rows(TOKENS[start : start + 1], start, blocks))
    assert torch.equal(alone, last[:1])
