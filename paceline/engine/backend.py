"""What a device must offer: a loaded model that runs steps, and its cache. Built by `cpu.backend` or `cuda.backend`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from paceline.engine.config import EngineConfig, ModelRole
from paceline.engine.models.weights import LoadedModel
from paceline.engine.scheduling.job import Job


class StepRunner(Protocol):
    """What the worker drives."""

    def step(self, shares: list[tuple[Job, int]]) -> None:
        """Feeds the first so many pending rows of each job, and lets each job absorb its samples."""
        ...


@dataclass(frozen=True, slots=True)
class Backend:
    """A model on its device, ready to run."""

    runner: StepRunner
    # `copy_blocks(sources, destinations)`: copies keys and values.
    copy_blocks: Callable[[list[int], list[int]], None]
    num_blocks: int
    # Tokens in a block.
    block_size: int
    # Parts whose rows depend on the rows beside them; empty where output is batch invariant.
    batch_variant_parts: list[str]


Progress = Callable[[str], None]
# Settings, the model's role, weights, most tokens in a sequence, where to report progress. Raises ConfigError where the
# model does not fit.
BuildBackend = Callable[[EngineConfig, ModelRole, LoadedModel, int, Progress], Backend]
