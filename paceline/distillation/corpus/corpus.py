"""The corpus on disk: conversations that the target wrote, in shards. A shard is written completely or not at all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import numpy as tensors_on_disk

from paceline.distillation.corpus.conversation import Record
from paceline.errors import ConfigError


class Corpus:
    """A folder of shards, each of many conversations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def shards(self) -> list[Path]:
        """The shards' files, in the order in which they were written."""
        return sorted(self._folder.glob("shard-*.safetensors"))

    @property
    def num_written(self) -> int:
        """Number of tokens that the target wrote, in all conversations."""
        return sum(int(_read_array(shard, "num_written").sum()) for shard in self.shards)

    @property
    def seconds(self) -> float:
        """Seconds that the writing of all shards took."""
        return sum(float(_read_array(shard, "seconds")[0]) for shard in self.shards)

    def add(self, records: list[Record], seconds: float) -> None:
        """Writes one more shard. `seconds`: the time that its conversations took."""
        arrays = {
            "seconds": np.array([seconds]),
            "tokens": np.concatenate([record.tokens for record in records]),
            "num_tokens": np.array([len(record.tokens) for record in records], np.int32),
            "num_prompt_tokens": np.array([record.num_prompt_tokens for record in records], np.int32),
            "written": np.concatenate([record.written for record in records]),
            "num_written": np.array([record.num_written for record in records], np.int32),
            "top_ids": np.concatenate([record.top_ids for record in records]),
            "top_logprobs": np.concatenate([record.top_logprobs for record in records]),
        }
        number = int(self.shards[-1].stem.rpartition("-")[2]) + 1 if self.shards else 0
        path = self._folder / f"shard-{number:05}.safetensors"
        scratch = path.with_suffix(".part")
        tensors_on_disk.save_file(arrays, scratch)
        scratch.rename(path)


def read_shard(path: Path) -> Iterator[Record]:
    """A shard's conversations. Raises ConfigError if the shard can't be read."""
    try:
        arrays = tensors_on_disk.load_file(path)
    except Exception as error:  # safetensors raises several types for files it can't read
        raise ConfigError(f"{path} can't be read: {error}") from error
    lengths = (arrays[name].tolist() for name in ("num_tokens", "num_prompt_tokens", "num_written"))
    token, row = 0, 0
    for num_tokens, num_prompt_tokens, num_written in zip(*lengths, strict=True):
        part = slice(row, row + num_written)
        kept = (arrays[name][part] for name in ("written", "top_ids", "top_logprobs"))
        yield Record(arrays["tokens"][token : token + num_tokens], num_prompt_tokens, *kept)
        token += num_tokens
        row += num_written


def _read_array(path: Path, name: str) -> NDArray[Any]:
    with tensors_on_disk.safe_open(path, framework="np") as opened:
        array: NDArray[Any] = opened.get_tensor(name)
        return array
