"""The model that all engines run, in one format of its weights."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from gguf import GGUFReader

from benchmarks.peers.dummy_gguf import FILE_TYPES, dummy_gguf
from benchmarks.peers.gguf_file import bf16_gguf, packaged_gguf
from paceline.engine.models.dummy import SHAPES
from paceline.engine.models.weights import find_folder

REAL = "smollm2-135m"
DUMMY = "dummy:"
FORMATS = {REAL: ("bf16", "q4_1")} | {f"{DUMMY}llama-3.2-{size}": tuple(FILE_TYPES) for size in ("1b", "3b")}
# Of the ids at both ends of a vocabulary some are control tokens.
FIRST_TEXT_ID, NUM_LAST_IDS = 256, 256


@dataclass(frozen=True, slots=True)
class Subject:
    """Raises ValueError for a model or a format that there is no file of."""

    # A key of FORMATS.
    model: str
    weights: str
    # Where files are made.
    folder: Path

    def __post_init__(self) -> None:
        if self.weights not in FORMATS.get(self.model, ()):
            known = "; ".join(f"{model}: {', '.join(formats)}" for model, formats in FORMATS.items())
            raise ValueError(f"no file of {self.model!r} in {self.weights!r} (there are {known})")

    @property
    def is_dummy(self) -> bool:
        return self.model.startswith(DUMMY)

    @property
    def has_folder(self) -> bool:
        """Whether there is a folder for the engines that take no GGUF files."""
        return not self.is_dummy and self.weights == "bf16"

    def gguf_file(self) -> Path:
        """Made on first use."""
        if self.is_dummy:
            return dummy_gguf(self.model.removeprefix(DUMMY), self.weights, self.folder)
        return bf16_gguf(self.model, self.folder) if self.weights == "bf16" else packaged_gguf(self.model)

    def model_folder(self, say: Callable[[str], None]) -> Path:
        """With the real model's weights in bfloat16."""
        return Path(find_folder(REAL, torch.bfloat16, say))

    def weight_bytes(self) -> int:
        """What a decode step reads: all tensors, as the embedding is the output too."""
        return sum(int(tensor.n_bytes) for tensor in GGUFReader(self.gguf_file()).tensors)

    def random_prompts(self, count: int, tokens: int) -> list[list[int]]:
        """The same whenever they are made. What a prompt says makes no difference to what it costs."""
        last = SHAPES[self.model.removeprefix(DUMMY)]["vocab_size"] - NUM_LAST_IDS
        random = Random(count * tokens)
        return [random.choices(range(FIRST_TEXT_ID, last), k=tokens) for _ in range(count)]
