"""Which draft head a target gets, and its layer on a CPU: a row for each format."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from paceline.engine.backend import Progress
from paceline.engine.cpu.block_drafting import BlockDrafting
from paceline.engine.cpu.dflash import CpuDFlash
from paceline.engine.cpu.draft_head import DraftHead
from paceline.engine.cpu.eagle import CpuEagle
from paceline.engine.cpu.eagle3 import CpuEagle3
from paceline.engine.cpu.head_drafting import HeadDrafting
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.runner import CpuModel
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.models.consistency import EMBEDDING, HEAD
from paceline.engine.models.draft_heads.dflash import DFLASH
from paceline.engine.models.draft_heads.eagle import EAGLE
from paceline.engine.models.draft_heads.eagle3 import EAGLE3
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.draft_heads.loading import known_head, load_draft_head
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.mtp import MTP_FORMAT, LoadedMtp, load_mtp
from paceline.engine.models.quantization import DTYPES
from paceline.engine.models.shapes import as_tensor
from paceline.engine.models.target_shape import shape_of
from paceline.engine.models.weights import LoadedModel
from paceline.errors import ConfigError

LoadedHead = LoadedDraftHead[Any] | LoadedMtp


def load_head(config: EngineConfig, role: ModelRole, loaded: LoadedModel[Any], progress: Progress) -> LoadedHead | None:
    """Loads the head that was asked for; with `auto`, the one that comes with Paceline or in the checkpoint.

    Raises ConfigError if a head that was asked for does not fit.
    """
    folder, found = role.draft_head, dict(loaded.mtp)
    # Not kept in memory unused.
    loaded.mtp.clear()
    if folder == "none":
        return None
    if folder == "auto":
        folder = known_head(config.model) or ""
    with unasked(role, progress):
        if folder:
            shape = shape_of(loaded.config)
            return load_draft_head(folder, shape, loaded.weights_fingerprint, DTYPES[config.dtype])
        if found:
            fingerprint = loaded.weights_fingerprint
            return load_mtp(config.model, loaded.config.source, found, loaded.tensors, fingerprint)
    return None


@contextmanager
def unasked(role: ModelRole, progress: Progress) -> Iterator[None]:
    """Goes on without a head that can't be used, and says why, if it was not asked for."""
    try:
        yield
    except ConfigError as error:
        if role.draft_head != "auto":
            raise
        progress(f"without a draft head: {error}")


def rows_to_lend(head: LoadedHead | None, loaded: LoadedModel[Any], dtype: torch.dtype) -> torch.Tensor | None:
    """Returns the target's output rows for the tokens of a head without its own: [head_size, hidden_size]."""
    if not isinstance(head, LoadedDraftHead) or "lm_head.weight" in head.tensors:
        return None
    if head.format != EAGLE3.name and len(head.ids) == loaded.config.vocab_size:
        # It multiplies with the target's own matrix.
        return None
    output = loaded.tensors[HEAD] if HEAD in loaded.tensors else loaded.tensors[EMBEDDING]
    scale = loaded.config.scales.logit if isinstance(loaded.config, ModelConfig) else 1.0
    return as_tensor(output, dtype)[torch.from_numpy(head.ids)] * scale


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
    drafting: type[HeadDrafting]


# By format, as the model info names it.
KINDS = {
    EAGLE3.name: HeadKind(_eagle3, HeadDrafting),
    EAGLE.name: HeadKind(_of_own_layers(CpuEagle), HeadDrafting),
    DFLASH.name: HeadKind(_of_own_layers(CpuDFlash), BlockDrafting),
    MTP_FORMAT: HeadKind(_mtp, HeadDrafting),
}
