"""What the target wrote, on disk: shards that are whole or not there."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import numpy as tensors_on_disk

from distillation.conversation import Record
from paceline.errors import ConfigError


class Corpus:
    """A folder of shards, each of many conversations."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def shards(self) -> list[Path]:
        """In the order they were written."""
        return sorted(self._folder.glob("shard-*.safetensors"))

    @property
    def num_answer_tokens(self) -> int:
        return sum(_count_answer_tokens(shard) for shard in self.shards)

    def add(self, records: list[Record]) -> None:
        """Writes one more shard."""
        arrays = {
            "tokens": np.concatenate([record.tokens for record in records]),
            "num_tokens": np.array([len(record.tokens) for record in records], np.int32),
            "num_prompt_tokens": np.array([record.num_prompt_tokens for record in records], np.int32),
            "top_ids": np.concatenate([record.top_ids for record in records]),
            "top_logprobs": np.concatenate([record.top_logprobs for record in records]),
        }
        number = int(self.shards[-1].stem.rpartition("-")[2]) + 1 if self.shards else 0
        path = self._folder / f"shard-{number:05}.safetensors"
        scratch = path.with_suffix(".part")
        tensors_on_disk.save_file(arrays, scratch)
        scratch.rename(path)


def read_shard(path: Path) -> Iterator[Record]:
    """A shard's conversations. Raises ConfigError if it can't be read."""
    try:
        arrays = tensors_on_disk.load_file(path)
    except Exception as error:  # safetensors raises several types for files it can't read
        raise ConfigError(f"{path} can't be read: {error}") from error
    token, answer = 0, 0
    for num_tokens, num_prompt_tokens in zip(arrays["num_tokens"], arrays["num_prompt_tokens"], strict=True):
        num_answer = int(num_tokens - num_prompt_tokens)
        part = slice(answer, answer + num_answer)
        tokens = arrays["tokens"][token : token + num_tokens]
        yield Record(tokens, int(num_prompt_tokens), arrays["top_ids"][part], arrays["top_logprobs"][part])
        token += int(num_tokens)
        answer += num_answer


def _count_answer_tokens(path: Path) -> int:
    with tensors_on_disk.safe_open(path, framework="np") as opened:
        shape: list[int] = opened.get_slice("top_ids").get_shape()
        return shape[0]
