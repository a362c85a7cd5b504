"""An MTP head on a GPU against transformers' own, and its drafts behind a target against the CPU engine's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.backend import BatchCheck, copying
from paceline.engine.cpu.head_building import build_head
from paceline.engine.cpu.head_drafting import CpuHeadDrafting
from paceline.engine.cpu.modules_model import CpuModules
from paceline.engine.cpu.runner import CpuRunner
from paceline.engine.cuda import backend
from paceline.engine.cuda.draft_heads.mtp import CudaMtp
from paceline.engine.cuda.modules_model import CudaModules
from paceline.engine.engine_config import ModelRole
from paceline.engine.models.mtp import LoadedMtp, load_mtp
from paceline.engine.models.weights import LoadedModel, load_model
from paceline.errors import ConfigError
from tests.engine.cpu.test_llama import relative_error
from tests.engine.cpu.test_mtp import LENGTH, MAX_ERROR, Oracle
from tests.engine.cuda.device import DEVICE
from tests.engine.cuda.test_backend import CONFIG, CountedMemory
from tests.engine.cuda.test_draft_heads import Chain
from tests.engine.cuda.test_head_backend import MAX_LEN, MIB
from tests.engine.cuda.test_head_drafting import BLOCK_SIZE, NUM_BLOCKS, TOKENS, Target, check_drafts
from tests.mtp_models import write_mtp

# The last position that the target has read when the chain begins: it ends a block.
FIRST = 15


def load(folder: Path) -> tuple[LoadedModel[Any], LoadedMtp]:
    loaded = load_model(str(folder), torch.float32, implementation="transformers")
    return loaded, load_mtp("it", loaded.config.source, loaded.mtp, loaded.tensors, loaded.weights_fingerprint)


@torch.inference_mode()
@pytest.mark.parametrize("kind", ["glm4_moe", pytest.param("deepseek_v3", marks=pytest.mark.campaign)])
def test_chains_are_transformers_own(kind: str, tmp_path: Path) -> None:
    write_mtp(tmp_path, kind)
    (loaded, head), oracle = load(tmp_path), Oracle(tmp_path)
    model = CudaModules(loaded.config, loaded.tensors, torch.float32, "none", 64, False, DEVICE)
    built = CudaMtp(head, model, "none", DEVICE)
    tokens = torch.tensor(TOKENS[:LENGTH]) % loaded.config.vocab_size
    states, chain = oracle.states(tokens.tolist())[: FIRST + 1].to(DEVICE), Chain(built)
    fused = built.fuse([states])
    # Position 0 has none before it. It is read as well, and never attended to.
    output = chain.feed(0, tokens[: FIRST + 2], torch.cat([torch.full_like(fused[:1], 7.0), fused]))[-1:]
    for step, theirs in enumerate(oracle.chain(tokens.tolist(), FIRST)):
        if step:
            position = FIRST + 1 + step
            output = chain.feed(position, tokens[position : position + 1], output)
        assert relative_error(built.logits(output)[0].cpu(), theirs) < MAX_ERROR


def on_cpu(folder: Path) -> Target:
    loaded, head = load(folder)
    model, float32 = CpuModules(loaded.config, loaded.tensors, torch.float32, "none", 64), np.dtype(np.float32)
    attention = model.make_cache(NUM_BLOCKS, BLOCK_SIZE)
    built = build_head(head, model, None, CONFIG, 64)
    drafting = CpuHeadDrafting(model, built, NUM_BLOCKS, BLOCK_SIZE, float32, float32)
    return Target(CpuRunner(model, attention, drafting), copying(attention.copy_blocks, drafting.copy_blocks))


def test_a_checkpoint_s_head_drafts_unasked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # They take Triton's interpreter long, and do not concern the head.
    monkeypatch.setattr(backend, "check_batch_invariance", lambda *_: BatchCheck([], ""))
    monkeypatch.setattr(backend, "run_largest_step", lambda *_: None)
    write_mtp(tmp_path, "glm4_moe", vocab_size=512)
    loaded = load_model(str(tmp_path), torch.float32, implementation="auto")
    config = CONFIG.model_copy(update={"model": str(tmp_path), "kv_cache_memory": MIB})
    role = ModelRole("target", draft_head="auto")
    memory = CountedMemory(1024 * MIB)
    built = backend.build_on(config, role, loaded, MAX_LEN, lambda _: None, DEVICE, memory)
    assert built.draft_head is not None
    assert built.draft_head.format == "mtp"
    results = []
    for target in (Target(built.runner, built.copy_blocks), on_cpu(tmp_path)):
        sequence, child = target.open(), target.open()
        results.append(target.verify((sequence, TOKENS[:10], [])))
        child.fork(sequence, 7)
        results[-1] += target.verify((child, [3], []))
    for ours, theirs in zip(*results, strict=True):
        assert ours.tokens == theirs.tokens
        check_drafts(ours, theirs)


def test_recurrent_targets_are_refused_before_their_head(tmp_path: Path) -> None:
    write_mtp(tmp_path, "qwen3_5_text", vocab_size=512)
    loaded = load_model(str(tmp_path), torch.float32, implementation="auto")
    config = CONFIG.model_copy(update={"model": str(tmp_path)})
    with pytest.raises(ConfigError, match="is recurrent; such layers run on a CPU only"):
        backend.build_on(
            config, ModelRole("target", draft_head="auto"), loaded, MAX_LEN, lambda _: None, DEVICE,
            CountedMemory(1024 * MIB),
        )  # fmt: skip
