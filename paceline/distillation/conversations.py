"""Conversations: the chat frame around a user's message, one while the target writes it, its record, and a corpus on disk."""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import numpy as tensors_on_disk
from transformers import PreTrainedTokenizerFast

from paceline.errors import ConfigError

_MARK = "\u2063paceline\u2063"


def read_tokenizer(files: dict[str, bytes]) -> PreTrainedTokenizerFast:
    """Makes a tokenizer. `files`: name -> content, as in `LoadedModel.tokenizer_files`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """A conversation is `before`, the user's message, `after`, the answer, and an EOS token."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "ChatFrame":
        """The frame of a model's tokenizer.

        Raises ConfigError if the model has no chat template, or if the template changes the user's message.
        """
        if tokenizer.chat_template is None:
            raise ConfigError("the target has no chat template; distillation needs one to have it write conversations")
        message = [{"role": "user", "content": _MARK}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        before, mark, after = text.partition(_MARK)
        if not mark:
            raise ConfigError("the target's chat template does not contain the user's turn as it is")
        return cls(*(tokenizer.encode(part, add_special_tokens=False) for part in (before, after)))


@dataclass(frozen=True, slots=True)
class Record:
    """A finished conversation, with the target's distribution at each token that it wrote.

    Only the likeliest tokens of a distribution are kept. The mass of all others is one minus the sum of these.
    """

    tokens: NDArray[np.int32]  # [num_tokens]
    # Tokens before the answer.
    num_prompt_tokens: int
    # Positions of the tokens that the target wrote: the answer, and the part of the user's message that it wrote.
    written: NDArray[np.int32]  # [num_written]
    top_ids: NDArray[np.int32]  # [num_written, top]
    top_logprobs: NDArray[np.float16]  # [num_written, top], likeliest first

    @property
    def num_written(self) -> int:
        return len(self.written)

    @property
    def answer(self) -> "Record":
        """The same conversation, with only the answer counted as written."""
        first = int(np.searchsorted(self.written, self.num_prompt_tokens))
        kept = (self.written[first:], self.top_ids[first:], self.top_logprobs[first:])
        return Record(self.tokens, self.num_prompt_tokens, *kept)


@dataclass(frozen=True, slots=True)
class Style:
    """How the tokens of a user's message or of an answer are sampled."""

    # 0 takes the likeliest token.
    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    """A user's message, or its beginning if `is_whole` is False: then the target writes the rest."""

    tokens: list[int]
    is_whole: bool


class Conversation:
    """A conversation that is written token by token: the rest of the user's message, then the answer."""

    def __init__(
        self, number: int, frame: ChatFrame, num_cached: int, user: Style, answer: Style, question: Question
    ) -> None:
        """`num_cached`: how many of the frame's first tokens are already in the cache."""
        self.number = number
        self._frame = frame
        self._answer = answer
        # `tokens` are in the cache. `pending` must be fed before the next token is sampled.
        self.tokens = frame.before[:num_cached]
        self.pending = frame.before[num_cached:] + question.tokens
        self.style = user
        self.is_done = False
        # Tokens written in the present part: the user's message or the answer.
        self._num_written = 0
        self._num_prompt_tokens = 0
        self._positions: list[int] = []
        self._top_ids: list[NDArray[np.int32]] = []
        self._top_logprobs: list[NDArray[np.float16]] = []
        if question.is_whole:
            self._hand_over()

    def fed(self) -> None:
        """The pending tokens were fed: they are in the cache."""
        self.tokens += self.pending
        self.pending = []

    def write(self, token: int, ends: bool, top_ids: NDArray[np.int32], top_logprobs: NDArray[np.float16]) -> None:
        """Takes the token sampled after the fed tokens, and the likeliest tokens of its distribution: [top] each.

        `ends`: whether it is an EOS token.
        """
        is_answer = self._num_prompt_tokens > 0
        self._num_written += 1
        is_full = self._num_written >= self.style.max_tokens
        # The chat template ends the user's message, so an EOS token there is dropped.
        if is_answer or not ends:
            self._positions.append(len(self.tokens))
            self._top_ids.append(top_ids)
            self._top_logprobs.append(top_logprobs)
            self.pending.append(token)
        if not (ends or is_full):
            return
        if is_answer:
            self.fed()
            self.is_done = True
        else:
            self._hand_over()

    @property
    def record(self) -> Record:
        tokens = np.array(self.tokens, np.int32)
        written = np.array(self._positions, np.int32)
        return Record(tokens, self._num_prompt_tokens, written, np.stack(self._top_ids), np.stack(self._top_logprobs))

    def _hand_over(self) -> None:
        self.pending += self._frame.after
        self._num_prompt_tokens = len(self.tokens) + len(self.pending)
        self.style = self._answer
        self._num_written = 0


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
