"""The interface of the backends, which `cpu.backend` and `cuda.backend` build."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.engine.cache.state_pool import StatePool
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.models.weights import LoadedModel
from paceline.engine.scheduling.step import StepRunner


@dataclass(frozen=True, slots=True)
class BatchCheck:
    """What the check of batch invariance found."""

    # Names of the parts that are not batch invariant.
    variant_parts: list[str]
    # Hex digest of the results: others on a processor whose instructions round differently.
    numerics: str


@dataclass(frozen=True, slots=True)
class DraftHeadFacts:
    """What the model info says of a draft head."""

    name: str
    format: str
    weights_fingerprint: str
    # Returns (rows, seconds) of its forward passes, given a free block; to be called on the device thread.
    measure: Callable[[int], list[tuple[int, float]]]


# `copy_blocks(sources, destinations)`
CopyBlocks = Callable[[list[int], list[int]], None]


def copying(*copies: CopyBlocks) -> CopyBlocks:
    """Returns what copies the blocks of several caches."""

    def copy_blocks(sources: list[int], destinations: list[int]) -> None:
        for copy in copies:
            copy(sources, destinations)

    return copy_blocks


@dataclass(frozen=True, slots=True)
class Backend:
    """A model on its device."""

    runner: StepRunner
    copy_blocks: CopyBlocks
    num_blocks: int
    # Slots for states of recurrent layers; none if there are no such layers.
    states: StatePool = field(default_factory=StatePool, kw_only=True)
    # Tokens in a block.
    block_size: int
    check: BatchCheck
    # Unique names of the GPU or the cores.
    device_ids: list[str]
    # The weights' formats (see `models.quantization.formats_of`).
    quantization: str
    # The most further steps that one program runs (`Job.multi_step_specs`).
    multi_steps: int = 0
    draft_head: DraftHeadFacts | None = None


Progress = Callable[[str], None]
# `build(config, role, loaded, max_model_len, progress)` raises ConfigError if the model or its cache does not fit.
BuildBackend = Callable[[EngineConfig, ModelRole, LoadedModel[Any], int, Progress], Backend]
