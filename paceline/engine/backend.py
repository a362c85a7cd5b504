"""The backend: a model on its device, with its KV cache, ready to run steps.

`cpu.backend` and `cuda.backend` build it.
"""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.engine.config import EngineConfig, ModelRole
from paceline.engine.models.weights import LoadedModel
from paceline.engine.scheduling.step import StepRunner


@dataclass(frozen=True, slots=True)
class Backend:
    """A model on its device."""

    runner: StepRunner
    # `copy_blocks(sources, destinations)` copies the blocks' keys and values.
    copy_blocks: Callable[[list[int], list[int]], None]
    num_blocks: int
    # Tokens in a block.
    block_size: int
    # Parts of the model whose results depend on the rest of the batch; empty if the model is batch invariant.
    batch_variant_parts: list[str]


Progress = Callable[[str], None]
# Takes the settings, the model's role, the weights, the most tokens in a sequence, and a function that reports
# progress. Raises ConfigError if the model or its cache does not fit into memory.
BuildBackend = Callable[[EngineConfig, ModelRole, LoadedModel, int, Progress], Backend]
