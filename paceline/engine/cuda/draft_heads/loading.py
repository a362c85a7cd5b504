"""Which draft head a target on a GPU gets, and its layer: a row for each format."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from paceline.engine.backend import Progress
from paceline.engine.cuda.draft_heads.block_drafting import CudaBlockDrafting
from paceline.engine.cuda.draft_heads.dflash import CudaDFlash
from paceline.engine.cuda.draft_heads.draft_head import CudaDraftHead
from paceline.engine.cuda.draft_heads.eagle import CudaEagle
from paceline.engine.cuda.draft_heads.eagle3 import CudaEagle3
from paceline.engine.cuda.draft_heads.head_drafting import CudaHeadDrafting
from paceline.engine.cuda.llama import CudaModel
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.head_loading import LoadedHead, load_head, unasked
from paceline.engine.models.draft_heads.dflash import DFLASH
from paceline.engine.models.draft_heads.eagle import EAGLE
from paceline.engine.models.draft_heads.eagle3 import EAGLE3
from paceline.engine.models.model_config import ModelConfig, TextConfig
from paceline.engine.models.mtp import MTP_FORMAT, LoadedMtp
from paceline.engine.models.quantization import INT8, NO_QUANTIZATION
from paceline.engine.models.weights import LoadedModel
from paceline.errors import ConfigError

# Of the numbers of blocks, the one that no sequence holds included, and of tokens in a block: their caches, and what drafts.
MakeDrafting = Callable[[int, int], CudaHeadDrafting]


class HeadKind(NamedTuple):
    build: Callable[..., Any]
    # How it is asked for drafts: of the head, the numbers of blocks and of tokens in one, and the device.
    drafting: Callable[..., CudaHeadDrafting]
    # Who computes the layers of the targets behind which it runs (see `EngineConfig.implementation`).
    targets: tuple[str, ...]


def _mtp(head: LoadedMtp, model: Any, quantization: str, _: None, device: torch.device) -> CudaDraftHead:
    # Here, because it imports torch's compiler, which our own layers do not need.
    from paceline.engine.cuda.draft_heads.mtp import CudaMtp

    return CudaMtp(head, model, quantization, device)


OWN, MODULES = ModelConfig.implementation, TextConfig.implementation
# By format, as the model info names it.
KINDS = {
    EAGLE3.name: HeadKind(CudaEagle3, CudaHeadDrafting, (OWN, MODULES)),
    EAGLE.name: HeadKind(CudaEagle, CudaHeadDrafting, (OWN,)),
    DFLASH.name: HeadKind(CudaDFlash, CudaBlockDrafting, (OWN,)),
    MTP_FORMAT: HeadKind(_mtp, CudaHeadDrafting, (MODULES,)),
}


def load_cuda_head(
    config: EngineConfig, role: ModelRole, loaded: LoadedModel[Any], progress: Progress
) -> LoadedHead | None:
    """Loads the head that was asked for, as `load_head`. Raises ConfigError also if it does not run behind such a target."""
    head, own = load_head(config, role, loaded, progress), loaded.config.implementation
    if head is None:
        return None
    with unasked(role, progress):
        if own not in (targets := KINDS[head.format].targets):
            raise ConfigError(
                f"draft_head {head.name!r}: on a GPU {head.format} heads need a target whose implementation is "
                f"{' or '.join(map(repr, targets))}; this one's is {own!r}"
            )
        return head
    return None


def build_cuda_head(
    head: LoadedHead, model: CudaModel, lent_rows: torch.Tensor | None, config: EngineConfig, device: torch.device
) -> MakeDrafting:
    """Takes the tensors out of `head`. Raises ConfigError if the kernels can't take its layer."""
    # It changes no output, so like a draft model's its products may be the fastest.
    quantization = INT8 if config.quantization == "auto" else config.quantization
    if config.dtype == "float32":
        quantization = NO_QUANTIZATION
    kind = KINDS[head.format]
    built = kind.build(head, model, quantization, lent_rows, device)
    return lambda num_blocks, block_size: kind.drafting(built, num_blocks, block_size, device)
