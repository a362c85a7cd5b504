"""The model that all engines run, in one weight format."""

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
# Some ids at both ends of a vocabulary are control tokens.
FIRST_TEXT_ID, NUM_LAST_IDS = 256, 256


@dataclass(frozen=True, slots=True)
class Subject:
    """Raises ValueError for a model or format without a file."""

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
        """Whether engines that can't read GGUF files have a folder."""
        return not self.is_dummy and self.weights == "bf16"

    def gguf_file(self) -> Path:
        """Made on first use."""
        if self.is_dummy:
            return dummy_gguf(self.model.removeprefix(DUMMY), self.weights, self.folder)
        return bf16_gguf(self.model, self.folder) if self.weights == "bf16" else packaged_gguf(self.model)

    def model_folder(self, say: Callable[[str], None]) -> Path:
        """Has the real model's weights in bfloat16."""
        return Path(find_folder(REAL, torch.bfloat16, say))

    def weight_bytes(self) -> int:
        """Bytes that a decode step reads: all tensors, since the embedding is the output too."""
        return sum(int(tensor.n_bytes) for tensor in GGUFReader(self.gguf_file()).tensors)

    def random_prompts(self, count: int, tokens: int) -> list[list[int]]:
        """Returns deterministic random prompts. Their content does not affect the cost."""
        last = SHAPES[self.model.removeprefix(DUMMY)]["vocab_size"] - NUM_LAST_IDS
        random = Random(count * tokens)
        return [random.choices(range(FIRST_TEXT_ID, last), k=tokens) for _ in range(count)]
