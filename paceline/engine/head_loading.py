"""Which draft head a target gets."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from paceline.engine.backend import Progress
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.models.consistency import EMBEDDING, HEAD
from paceline.engine.models.draft_heads.eagle3 import EAGLE3
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.draft_heads.loading import known_head, load_draft_head
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.mtp import LoadedMtp, load_mtp
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
