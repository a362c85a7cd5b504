"""transformers' modules on a GPU give the CPU engine's logits, and each row the bits it has alone."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig

from paceline.engine.cuda.backend import build_on
from paceline.engine.cuda.budget import MIB
from paceline.engine.cuda.modules_model import CudaModules
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.engine.cpu.test_architectures import SHAPE, TOKENS, write_random
from tests.engine.cpu.test_llama import relative_error
from tests.engine.cpu.test_modules import config_of
from tests.engine.cpu.test_recurrent import RECURRENT
from tests.engine.cuda.device import DEVICE
from tests.engine.cuda.feeding import GpuFeeder
from tests.engine.cuda.test_backend import CONFIG, ROLE, CountedMemory
from tests.engine.feeding import Feeder, Rows, load_modules

# Past the windows' length.
LENGTH, ROUND = 45, 3


# Experts, windows and sinks; a parallel residual.
@pytest.mark.parametrize("kind", ["gpt_oss", pytest.param("cohere2", marks=pytest.mark.campaign)])
def test_logits_are_the_cpu_engines(kind: str, tmp_path: Path) -> None:
    config = config_of(kind)
    config.num_hidden_layers, config.layer_types = 2, config.layer_types[:2]
    write_random(config, tmp_path)
    theirs = Feeder(load_modules(str(tmp_path))).feed_split(TOKENS[:LENGTH], [LENGTH])
    feeder, blocks, start = GpuFeeder(load_on_gpu(tmp_path)), [5, 2, 9], LENGTH - ROUND
    [first] = feeder.feed(Rows(TOKENS[:start], 0, blocks))
    [last] = feeder.feed(Rows(TOKENS[start:LENGTH], start, blocks))
    assert relative_error(torch.cat([first, last]), theirs) < 1e-4
    [alone] = feeder.feed(Rows(TOKENS[start : start + 1], start, blocks))
    assert torch.equal(alone, last[:1])


def load_on_gpu(folder: Path) -> CudaModules:
    loaded = load_model(str(folder), torch.float32, implementation="transformers")
    return CudaModules(loaded.config, loaded.tensors, torch.float32, "none", 512, True, DEVICE)


def test_layers_of_several_shapes_are_refused(tmp_path: Path) -> None:
    write_random(config_of("gemma4_text"), tmp_path)
    with pytest.raises(ConfigError, match="layers differ in heads or head_dim"):
        load_on_gpu(tmp_path)


def test_recurrent_layers_are_refused(tmp_path: Path) -> None:
    write_random(AutoConfig.for_model("lfm2", **SHAPE | RECURRENT["lfm2"]), tmp_path)
    with pytest.raises(ConfigError, match="layer 0 is recurrent; such layers run on a CPU only"):
        load_on_gpu(tmp_path)


@pytest.mark.campaign
def test_a_model_without_graphs_comes_to_a_device() -> None:
    loaded = load_model("dummy:tiny", torch.float32, implementation="transformers")
    said: list[str] = []
    backend = build_on(CONFIG, ROLE, loaded, 40, said.append, DEVICE, CountedMemory(1024 * MIB))
    assert any("graphs 0 MiB" in line for line in said)
    assert (backend.multi_steps, backend.check.variant_parts) == (0, [])
