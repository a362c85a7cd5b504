"""A DFlash head's blocks against those of `speculators` 0.9.0 (tests/data/dflash): random weights, from each of six positions.

Each folder is a head as that package saves it, and what its own forward computed, in float32: of blocks of six rows as the head is
made for (`logits`), and of three (`few`).
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.cpu.dflash import CpuDFlash
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.models.draft_heads.loading import load_draft_head
from tests.engine.cpu.test_eagle import lender, made_for

DATA = Path(__file__).parents[2] / "data" / "dflash"
VARIANTS = ("plain", "draft_vocab")
BLOCK_SIZE, BLOCKS = 8, [2, 0, 3, 1]


class Blocks:
    """A head's layers over one sequence's positions."""

    def __init__(self, variant: str) -> None:
        self.expected = load_file(DATA / f"{variant}.expected.safetensors")
        target = made_for()
        loaded = load_draft_head(str(DATA / variant), target, "", torch.float32)
        assert loaded.config.taps == (1, 4, 6)
        self.ids, self.mask = loaded.ids, loaded.config.mask_token_id
        self.head = CpuDFlash(loaded, lender(self.expected, target), "none")
        assert not loaded.tensors, "nothing is left unread"
        self.attention = CpuPagedAttention(loaded.config.layer, len(BLOCKS), BLOCK_SIZE, np.dtype(np.float32))
        self.context = self.head.fuse(np.split(self.expected["hidden"].numpy(), 3, axis=1))

    def draft(self, first: int, end: int, num_rows: int) -> Array:
        """Reads the context from `first` on, and drafts a block at `end`: [num_rows - 1, head_size]."""
        context = [TokenSpan(0, end - first, first, BLOCKS)]
        blocks = [TokenSpan(end - first, num_rows, end, BLOCKS)] if num_rows else []
        tokens = np.array([int(self.expected["tokens"][end]), *[self.mask] * (num_rows - 1)][:num_rows], np.int64)
        plan = self.attention.plan(blocks, context, sees_ahead=True)
        outputs = self.head.forward(tokens, self.context[first:end], self.attention, plan)
        return self.head.logits(outputs[1:]) if num_rows else outputs


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(("name", "num_rows"), [("logits", 6), ("few", 3)])
def test_blocks_are_the_reference(variant: str, name: str, num_rows: int) -> None:
    """Each block over what the ones before have left, and over a context that is read in one go."""
    behind = Blocks(variant)
    done = 0
    for number, anchor in enumerate(behind.expected["anchors"].tolist()):
        reference = behind.expected[name][number]
        for blocks, first in ((behind, done), (Blocks(variant), 0)):
            logits = blocks.draft(first, anchor, num_rows)
            torch.testing.assert_close(logits, reference, rtol=1e-5, atol=1e-5)
            assert torch.equal(logits.argmax(-1), reference.argmax(-1))
        done = anchor


def test_a_context_alone_is_read_as_well() -> None:
    blocks, [*_, last] = Blocks("plain"), Blocks("plain").expected["anchors"].tolist()
    assert blocks.draft(0, 5, 0).shape == (0, 32)
    assert blocks.draft(5, 12, 0).shape == (0, 32)
    reference = blocks.expected["logits"][-1]
    torch.testing.assert_close(blocks.draft(12, last, 6), reference, rtol=1e-5, atol=1e-5)


def test_the_tokens_of_a_head_that_knows_some_are_the_file_s() -> None:
    own = load_file(DATA / "draft_vocab" / "model.safetensors")
    assert np.array_equal(np.flatnonzero(own["t2d"].numpy()), Blocks("draft_vocab").ids)
