"""An EAGLE-1 head's chains against those of `speculators` (tests/data/eagle): four steps from each of ten positions.

Each folder is a head as that package's 0.4.0 saves it, the last with this format, and what its own forward computed in float32.
"""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.cpu.eagle import CpuEagle
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.linear import make_cpu_linear
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.models.architectures import Scales
from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.dummy import dummy_config
from paceline.engine.models.model_config import ModelConfig
from tests.engine.feeding import load_part

DATA = Path(__file__).parents[2] / "data" / "eagle"
VARIANTS = ("plain", "fusion_bias", "layernorms")
BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 8, 4, 32
EPS = 1e-5


def made_for(vocab_size: int = 96, hidden_size: int = 32) -> ModelConfig:
    """The target's shape: what a head must fit."""
    config = ModelConfig.from_transformers(dummy_config("tiny"))
    return replace(config, vocab_size=vocab_size, hidden_size=hidden_size, layers=config.layers * 4)


def lender(expected: dict[str, torch.Tensor], config: ModelConfig) -> Any:
    """What a target lends, computed by torch."""
    embeddings, rows = expected["embeddings"].numpy(), expected["lm_head"]

    def normed(x: Array) -> Array:
        wide = torch.from_numpy(x).double()
        wide = wide / (wide.square().mean(-1, keepdim=True) + EPS).sqrt() * expected["norm"].double()
        return wide.float().numpy()

    return SimpleNamespace(
        config=config, max_model_len=MAX_LEN, embed=embeddings.__getitem__, normed=normed,
        head=Head(make_cpu_linear(rows, None, "none"), None, config.vocab_size),
        project=lambda x: torch.from_numpy(x) @ rows.T,
    )  # fmt: skip


class Chain:
    """A head's layer over one sequence's positions."""

    def __init__(self, head: CpuEagle) -> None:
        self._head = head
        self._attention = CpuPagedAttention(head.config.layer, NUM_BLOCKS, BLOCK_SIZE, np.dtype(np.float32), 1)

    def feed(self, position: int, tokens: Array, hidden: Array) -> Array:
        plan = self._attention.plan([TokenSpan(0, len(tokens), position, [2, 0, 3, 1])])
        return self._head.forward(tokens, hidden, self._attention, plan)


@pytest.mark.parametrize("variant", VARIANTS)
def test_chains_are_the_reference(variant: str) -> None:
    expected = load_file(DATA / f"{variant}.expected.safetensors")
    target = made_for()
    loaded = load_draft_head(str(DATA / variant), target, "", torch.float32)
    assert loaded.config.taps == (8,), "the target's last state"
    head = CpuEagle(loaded, lender(expected, target), "none")
    assert not [name for name in loaded.tensors if "norm" in name or "fc" in name], "nothing is left unread"
    tokens, states = expected["tokens"].numpy(), head.fuse([expected["raw"].numpy()])
    num_steps, num_positions, _ = expected["logits"].shape
    for first in range(num_positions):
        chain = Chain(head)
        # Position t has the state of t - 1 and the token at t; position 0 is read as well, and never attended to.
        before = np.concatenate([np.full_like(states[:1], 7.0), states[: first + 1]])
        output = chain.feed(0, tokens[: first + 2], before)[-1:]
        for step in range(num_steps):
            if step:
                position = first + 1 + step
                output = chain.feed(position, tokens[position : position + 1], output)
            [logits], reference = head.logits(output), expected["logits"][step, first]
            torch.testing.assert_close(logits, reference, rtol=1e-5, atol=1e-5)
            assert logits.argmax() == reference.argmax()
            torch.testing.assert_close(
                torch.from_numpy(output[0]), expected["outputs"][step, first], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("scales", [Scales(), Scales(logit=0.125, logit_cap=2.0)])
def test_a_targets_state_is_normed_as_its_matrix_reads_it(scales: Scales) -> None:
    """The factor and the cap of logits are no part of the state that a head reads."""
    config, tensors = load_part("dummy:tiny", torch.float32)  # with tied embeddings
    norm, rows = tensors["model.norm.weight"].double(), tensors["model.embed_tokens.weight"].double()
    model = CpuLlama(replace(config, scales=scales), tensors, "none", MAX_LEN)
    x = torch.randn(3, config.hidden_size, generator=torch.Generator().manual_seed(2))
    normed = x.double() / (x.double().square().mean(-1, keepdim=True) + config.norm_eps).sqrt() * norm
    torch.testing.assert_close(torch.from_numpy(model.normed(x.numpy())), normed.float(), rtol=1e-6, atol=1e-6)
    logits = normed @ rows.T * scales.logit
    if scales.logit_cap:
        logits = scales.logit_cap * torch.tanh(logits / scales.logit_cap)
    for found in (model.project(model.normed(x.numpy())), model.logits(x.numpy())):
        torch.testing.assert_close(found, logits.float(), rtol=1e-5, atol=1e-5)
