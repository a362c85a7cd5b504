"""The model that all engines run, in one weight format."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import torch
from gguf import GGUFReader
from transformers import AutoTokenizer

from benchmarks.deployment import DRAFT
from benchmarks.peers.dummy_gguf import FILE_TYPES, dummy_gguf
from benchmarks.peers.gguf_file import bf16_gguf, packaged_gguf
from paceline.engine.models.dummy import SHAPES
from paceline.engine.models.gguf.file import read_gguf
from paceline.engine.models.weights import find_folder

REAL, LARGER = "smollm2-135m", "qwen2.5-coder-1.5b"
DRAFTS = {REAL: DRAFT, LARGER: "qwen2.5-coder-0.5b"}
DUMMY = "dummy:"
FORMATS = {REAL: ("bf16", "q4_1"), LARGER: ("q4_k_m",)} | {
    f"{DUMMY}llama-3.2-{size}": tuple(FILE_TYPES) for size in ("1b", "3b")
}
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
        return self.model == REAL and self.weights == "bf16"

    @property
    def draft(self) -> str:
        """Returns the name of Paceline's draft."""
        return DRAFTS.get(self.model, "none")

    @property
    def draft_gguf_file(self) -> str:
        """Returns the draft as a file that other engines can run, or ""."""
        return str(packaged_gguf(self.draft)) if self.model == LARGER else ""

    def tokenizer(self) -> Any:
        """Returns the file's own tokenizer, as transformers has it."""
        with TemporaryDirectory() as folder:
            for name, content in read_gguf(packaged_gguf(self.model)).tokenizer_files.items():
                (Path(folder) / name).write_bytes(content)
            return AutoTokenizer.from_pretrained(folder)

    def gguf_file(self) -> Path:
        """Made on first use."""
        if self.is_dummy:
            return dummy_gguf(self.model.removeprefix(DUMMY), self.weights, self.folder)
        return bf16_gguf(self.model, self.folder) if self.weights == "bf16" else packaged_gguf(self.model)

    def model_folder(self, say: Callable[[str], None]) -> Path:
        """Has the small model's weights in bfloat16."""
        return Path(find_folder(REAL, torch.bfloat16, say))

    def weight_bytes(self) -> int:
        """Bytes that a decode step reads: all tensors, since the embedding is the output too."""
        return sum(int(tensor.n_bytes) for tensor in GGUFReader(self.gguf_file()).tensors)

    def random_prompts(self, count: int, tokens: int) -> list[list[int]]:
        """Returns deterministic random prompts. Their content does not affect the cost."""
        shape = SHAPES.get(self.model.removeprefix(DUMMY))
        last = (shape["vocab_size"] if shape else self.tokenizer().vocab_size) - NUM_LAST_IDS
        random = Random(count * tokens)
        return [random.choices(range(FIRST_TEXT_ID, last), k=tokens) for _ in range(count)]
