"""A draft head's layer on a CPU: a row for each format."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from paceline.engine.cpu.block_drafting import CpuBlockDrafting
from paceline.engine.cpu.dflash import CpuDFlash
from paceline.engine.cpu.draft_head import DraftHead
from paceline.engine.cpu.eagle import CpuEagle
from paceline.engine.cpu.eagle3 import CpuEagle3
from paceline.engine.cpu.head_drafting import CpuHeadDrafting
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.runner import CpuModel
from paceline.engine.engine_config import EngineConfig
from paceline.engine.head_loading import LoadedHead
from paceline.engine.models.draft_heads.dflash import DFLASH
from paceline.engine.models.draft_heads.eagle import EAGLE
from paceline.engine.models.draft_heads.eagle3 import EAGLE3
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.mtp import MTP_FORMAT, LoadedMtp
from paceline.engine.models.quantization import DTYPES
from paceline.errors import ConfigError


def build_head(
    head: LoadedHead, model: CpuModel, lent_rows: torch.Tensor | None, config: EngineConfig, longest: int
) -> DraftHead:
    """Takes the tensors out of `head`. Raises ConfigError if the engine can't run its layer.

    longest: tokens of the longest sequence.
    """
    # It changes no output, so like a draft model's its products may be the fastest.
    quantization = "none" if config.dtype == "float32" else config.quantization
    return KINDS[head.format].build(head, model, lent_rows, DTYPES[config.dtype], quantization, longest)


def _eagle3(
    head: LoadedDraftHead[Any],
    model: Any,
    lent_rows: torch.Tensor | None,
    _: torch.dtype,
    quantization: str,
    longest: int,
) -> DraftHead:
    return CpuEagle3(head, model.config, longest, quantization, model.embed, lent_rows)


def _mtp(head: LoadedMtp, model: Any, _: None, dtype: torch.dtype, quantization: str, longest: int) -> DraftHead:
    # Here, because it imports torch's compiler, which our own layers do not need.
    from paceline.engine.cpu.mtp import CpuMtp

    return CpuMtp(head, model, dtype, quantization)


def _of_own_layers(layers: Callable[..., DraftHead]) -> Callable[..., DraftHead]:
    def build(
        head: LoadedDraftHead[Any],
        model: Any,
        lent_rows: torch.Tensor | None,
        _: torch.dtype,
        quantization: str,
        longest: int,
    ) -> DraftHead:
        if not isinstance(model, CpuLlama):
            raise ConfigError(f"draft_head {head.name!r}: {head.format} heads need a target with our own layers")
        return layers(head, model, quantization, lent_rows)

    return build


class HeadKind(NamedTuple):
    build: Callable[..., DraftHead]
    # How it is asked for drafts.
    drafting: type[CpuHeadDrafting]


# By format, as the model info names it.
KINDS = {
    EAGLE3.name: HeadKind(_eagle3, CpuHeadDrafting),
    EAGLE.name: HeadKind(_of_own_layers(CpuEagle), CpuHeadDrafting),
    DFLASH.name: HeadKind(_of_own_layers(CpuDFlash), CpuBlockDrafting),
    MTP_FORMAT: HeadKind(_mtp, CpuHeadDrafting),
}
