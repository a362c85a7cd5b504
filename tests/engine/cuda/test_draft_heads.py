"""A head's chains on a GPU against those of `speculators` (tests/data), as the CPU's tests compare them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.engine.batch import Batch, TokenSpan
from paceline.engine.cuda.draft_heads.block_drafting import CudaBlockDrafting
from paceline.engine.cuda.draft_heads.dflash import CudaDFlash
from paceline.engine.cuda.draft_heads.draft_head import CudaDraftHead
from paceline.engine.cuda.draft_heads.eagle import CudaEagle
from paceline.engine.cuda.draft_heads.eagle3 import CudaEagle3
from paceline.engine.cuda.draft_heads.head_drafting import SlottedStates
from paceline.engine.cuda.forward_plan import ForwardShape, Staging
from paceline.engine.head_loading import rows_to_lend
from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.weights import load_model
from tests.draft_heads import write_head
from tests.engine.cpu import test_dflash, test_eagle, test_eagle3
from tests.engine.cuda.device import DEVICE
from tests.engine.feeding import EMBEDDINGS

BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 8, 5, 32
BLOCKS = [2, 0, 3, 1]


def lender(config: Any, embeddings: torch.Tensor, **others: Any) -> Any:
    """What a target lends, computed by torch."""
    return SimpleNamespace(
        config=config, max_model_len=MAX_LEN, embed=lambda tokens: embeddings.to(DEVICE)[tokens.long()],
        new_logits=lambda num_rows: torch.empty((num_rows, config.vocab_size), device=DEVICE), **others,
    )  # fmt: skip


class Chain:
    """A head's layer over one sequence's positions."""

    def __init__(self, head: CudaDraftHead) -> None:
        self._head, self._attention = head, head.make_cache(NUM_BLOCKS, BLOCK_SIZE)

    def feed(self, position: int, tokens: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        batch = Batch(tokens.numpy(), [TokenSpan(0, len(tokens), position, BLOCKS)], tokens.numpy()[:0])
        staging = Staging(ForwardShape.of(batch, batch_invariant=False), NUM_BLOCKS, BLOCK_SIZE, DEVICE)
        staging.fill(batch)
        return self._head.forward(staging.plan, hidden, self._attention)


def check_chains(
    head: CudaDraftHead, fused: torch.Tensor, expected: dict[str, torch.Tensor], ids: torch.Tensor
) -> None:
    """fused: what `fuse` makes of the reference's states."""
    num_steps, num_positions, _ = expected["logits"].shape
    for first in (0, num_positions - 1):
        chain, tokens = Chain(head), expected["tokens"]
        # Position t has the states of t - 1 and the token at t; position 0 is read as well, and never attended to.
        before = torch.cat([torch.full_like(fused[:1], 7.0), fused[: first + 1]])
        output = chain.feed(0, tokens[: first + 2], before)[-1:]
        for step in range(num_steps):
            if step:
                position = first + 1 + step
                output = chain.feed(position, tokens[position : position + 1], output)
            [logits] = head.logits(output).cpu()
            torch.testing.assert_close(logits[ids], expected["logits"][step, first], rtol=1e-5, atol=1e-5)
            # All others are out of the question.
            assert (logits > -1e8).sum() == len(ids)
            torch.testing.assert_close(output[0].cpu(), expected["outputs"][step, first], rtol=1e-5, atol=1e-5)


@torch.inference_mode()
@pytest.mark.parametrize("variant", test_eagle3.VARIANTS)
def test_eagle3_chains_are_the_reference(variant: str) -> None:
    expected, target = load_file(test_eagle3.DATA / f"{variant}.expected.safetensors"), test_eagle3.made_for()
    loaded = load_draft_head(str(test_eagle3.DATA / variant), target, "", torch.float32)
    head = CudaEagle3(loaded, lender(target, expected["embeddings"].float()), "none", None, DEVICE)
    assert loaded.tensors == {}, "nothing is left unread"
    states = expected["hidden"].to(DEVICE).chunk(3, dim=1)
    fused = head.fuse([each.contiguous() for each in states])
    check_chains(head, fused, expected, torch.from_numpy(loaded.ids))


@torch.inference_mode()
@pytest.mark.parametrize("variant", test_eagle.VARIANTS)
def test_eagle_chains_are_the_reference(variant: str) -> None:
    expected, target = load_file(test_eagle.DATA / f"{variant}.expected.safetensors"), test_eagle.made_for()
    loaded = load_draft_head(str(test_eagle.DATA / variant), target, "", torch.float32)
    of_cpu, rows = test_eagle.lender(expected, target), expected["lm_head"].to(DEVICE)
    own = lender(
        target, expected["embeddings"], project=lambda x: x @ rows.T,
        normed=lambda x: torch.from_numpy(of_cpu.normed(x.cpu().numpy())).to(DEVICE),
    )  # fmt: skip
    head = CudaEagle(loaded, own, "none", None, DEVICE)
    check_chains(head, head.fuse([expected["raw"].to(DEVICE)]), expected, torch.arange(target.vocab_size))


@torch.inference_mode()
@pytest.mark.parametrize("variant", test_dflash.VARIANTS)
def test_dflash_blocks_are_the_reference(variant: str) -> None:
    """Each over what the ones before have left, of the whole size and of a smaller one."""
    expected, target = load_file(test_dflash.DATA / f"{variant}.expected.safetensors"), test_eagle.made_for()
    loaded = load_draft_head(str(test_dflash.DATA / variant), target, "", torch.float32)
    ids, rows = torch.from_numpy(loaded.ids), expected["lm_head"].to(DEVICE)
    own = lender(target, expected["embeddings"], project=lambda x: x @ rows.T)
    head = CudaDFlash(loaded, own, "none", None, DEVICE)
    assert loaded.tensors == {}, "nothing is left unread"
    drafting, done = CudaBlockDrafting(head, NUM_BLOCKS, BLOCK_SIZE, DEVICE), 0
    positions, table = torch.arange(len(expected["hidden"])), torch.tensor(BLOCKS)
    slots = table[positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
    states = [each.contiguous().to(DEVICE) for each in expected["hidden"].chunk(3, dim=1)]
    drafting._keep(SlottedStates(dict(enumerate(states)), slots.to(DEVICE)), [])
    for number, anchor in enumerate(expected["anchors"].tolist()):
        for name, num_rows in (("few", 3), ("logits", 6)):
            context = [TokenSpan(0, anchor - done, done, BLOCKS)]
            blocks = [TokenSpan(anchor - done, num_rows, anchor, BLOCKS)]
            tokens = [int(expected["tokens"][anchor]), *[loaded.config.mask_token_id] * (num_rows - 1)]
            logits = head.logits(drafting._run(context, blocks, tokens)).cpu()
            torch.testing.assert_close(logits[:, ids], expected[name][number], rtol=1e-5, atol=1e-5)
            done = anchor


@torch.inference_mode()
def test_a_whole_vocabulary_may_be_in_another_order(tmp_path: Path) -> None:
    order = torch.randperm(512, generator=torch.Generator().manual_seed(4))
    ids = {"d2t": order - torch.arange(512), "t2d": torch.ones(512, dtype=torch.bool)}
    write_head(tmp_path, ids, draft_vocab_size=512, norm_output=True)
    loaded = load_model("dummy:tiny", torch.float32)
    head = load_draft_head(str(tmp_path), loaded.config, loaded.weights_fingerprint, torch.float32)
    rows, embeddings = rows_to_lend(head, loaded, torch.float32), loaded.tensors[EMBEDDINGS]
    built = CudaEagle3(head, lender(loaded.config, embeddings), "none", rows, DEVICE)
    x = torch.randn(3, loaded.config.hidden_size, generator=torch.Generator().manual_seed(5))
    torch.testing.assert_close(built.logits(x.to(DEVICE)).cpu(), x @ embeddings.T, rtol=1e-4, atol=1e-4)
