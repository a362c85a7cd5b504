"""A target on a GPU comes with its draft head: in the budget, in copied blocks, and refused by name if it can't be used."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from paceline.engine.backend import Backend, BatchCheck
from paceline.engine.cuda import backend
from paceline.engine.cuda.budget import MIB
from paceline.engine.cuda.draft_heads.head_drafting import CudaHeadDrafting
from paceline.engine.engine_config import ModelRole
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.draft_heads import Maker, write_dflash, write_eagle, write_head
from tests.engine.cuda.device import DEVICE
from tests.engine.cuda.test_backend import CONFIG, CountedMemory
from tests.engine.cuda.test_head_drafting import BLOCK_SIZE, TOKENS, Target, check_drafts, expected

PROMPT, MAX_LEN = TOKENS[:10], 24
SMALL = CONFIG.model_copy(update={"kv_cache_memory": MIB})


def build(head: str, **flags: Any) -> Backend:
    """flags: of `load_model`."""
    loaded, role = load_model(CONFIG.model, torch.float32, **flags), ModelRole("target", draft_head=head)
    return backend.build_on(SMALL, role, loaded, MAX_LEN, lambda _: None, DEVICE, CountedMemory(1024 * MIB))


def bytes_of_block(with_head: bool) -> int:
    """float32: keys and values of two layers, and of the head's one, with a hidden state."""
    made = Maker("tiny")
    numbers = 2 * (2 + with_head) * made.kv_heads * made.head_dim + with_head * made.width
    return 4 * BLOCK_SIZE * numbers


@pytest.mark.parametrize("implementation", ["own", pytest.param("transformers", marks=pytest.mark.campaign)])
def test_a_target_drafts_for_itself(implementation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # It takes Triton's interpreter half a minute, and does not concern the head.
    monkeypatch.setattr(backend, "check_batch_invariance", lambda *_: BatchCheck([], ""))
    largest = Mock(side_effect=CudaHeadDrafting.run_largest, autospec=True)
    monkeypatch.setattr(CudaHeadDrafting, "run_largest", lambda *given: largest(*given))
    write_head(tmp_path)
    built = build(str(tmp_path), implementation=implementation)
    assert built.draft_head is not None
    assert (built.draft_head.name, built.draft_head.format) == (str(tmp_path), "eagle3")
    assert built.num_blocks == MIB // bytes_of_block(with_head=True) < MIB // bytes_of_block(with_head=False)
    assert [each.args[1:] for each in largest.call_args_list] == [(MAX_LEN, MAX_LEN)]
    target = Target(built.runner, built.copy_blocks)
    sequence, child = target.open(), target.open()
    [result] = target.verify((sequence, PROMPT, []))
    theirs = expected("eagle3", PROMPT)
    assert result.tokens == theirs.tokens
    check_drafts(result, theirs)
    child.fork(sequence, 7)
    [result] = target.verify((child, [3], []))
    check_drafts(result, expected("eagle3", [*PROMPT[:7], 3]))


def test_heads_that_a_gpu_does_not_run_are_refused_by_name(tmp_path: Path) -> None:
    write_dflash(tmp_path / "dflash", block_size=17)
    with pytest.raises(ConfigError, match=r"dflash': block_size is 17; on a GPU it must be at most 16$"):
        build(str(tmp_path / "dflash"))
    write_eagle(tmp_path / "eagle")
    said = "on a GPU eagle heads need a target whose implementation is 'own'; this one's is 'transformers'"
    with pytest.raises(ConfigError, match=said):
        build(str(tmp_path / "eagle"), implementation="transformers")
