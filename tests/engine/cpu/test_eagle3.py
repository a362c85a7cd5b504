"""A head's chains against those of `speculators` (tests/data/eagle3): random weights, four steps from each of twelve positions.

Each folder is a head as that package saves it, and what its own forward computed, in float32.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.cpu.eagle3 import CpuEagle3
from paceline.engine.cpu.kernels.scalars import bits_of
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.dummy import dummy_config
from paceline.engine.models.model_config import ModelConfig

DATA = Path(__file__).parents[2] / "data" / "eagle3"
VARIANTS = ("plain", "normed_outputs", "qwen3")
BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 8, 4, 32


def made_for() -> ModelConfig:
    """The target's shape: what a head must fit."""
    config = ModelConfig.from_transformers(dummy_config("tiny"))
    return replace(config, vocab_size=320, layers=config.layers * 4)


class Chain:
    """A head's layer over one sequence's positions."""

    def __init__(self, head: CpuEagle3) -> None:
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
    ids = loaded.ids
    own = load_file(DATA / variant / "model.safetensors")
    assert np.array_equal(np.flatnonzero(own["t2d"].numpy()), ids)
    head = CpuEagle3(loaded, target, MAX_LEN, "none", bits_of(expected["embeddings"].float()).__getitem__)
    tokens, states = expected["tokens"].numpy(), expected["hidden"].numpy()
    fused = head.fuse(np.split(states, 3, axis=1))
    num_steps, num_positions, _ = expected["logits"].shape
    for first in range(num_positions):
        chain = Chain(head)
        # Position t has the states of t - 1 and the token at t; position 0 is read as well, and never attended to.
        before = np.concatenate([np.full_like(fused[:1], 7.0), fused[: first + 1]])
        output = chain.feed(0, tokens[: first + 2], before)[-1:]
        for step in range(num_steps):
            if step:
                position = first + 1 + step
                output = chain.feed(position, tokens[position : position + 1], output)
            logits = head.logits(output)[0]
            torch.testing.assert_close(logits, expected["logits"][step, first], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(
                torch.from_numpy(output[0]), expected["outputs"][step, first], rtol=1e-5, atol=1e-5
            )
