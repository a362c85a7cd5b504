"""Conversations that the target writes with itself, in progress and on disk."""

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

STATES_SUFFIX = ".states.npy"
_MARK = "\u2063paceline\u2063"


def read_tokenizer(files: dict[str, bytes]) -> PreTrainedTokenizerFast:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """Tokens of the chat template before and after a user message. The answer and an EOS token follow."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "ChatFrame":
        """Raises ConfigError without a chat template, or if it changes the user's message."""
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
    """A finished conversation, with the target's likeliest tokens at each token that it wrote."""

    tokens: NDArray[np.int32]  # [num_tokens]
    num_prompt_tokens: int
    # Positions of the tokens that the target wrote: the answer and part of the user message.
    written: NDArray[np.int32]  # [num_written]
    top_ids: NDArray[np.int32]  # [num_written, top]
    top_logprobs: NDArray[np.float16]  # [num_written, top], likeliest first
    # The target's hidden states after some layers, in bfloat16, if they were kept; none at a last token that it did not read.
    states: NDArray[np.uint16] | None = None  # [num_tokens, num_taps, hidden_size]

    @property
    def num_written(self) -> int:
        return len(self.written)

    @property
    def answer(self) -> "Record":
        """Returns the record with only the answer as written tokens."""
        first = int(np.searchsorted(self.written, self.num_prompt_tokens))
        kept = (self.written[first:], self.top_ids[first:], self.top_logprobs[first:])
        return Record(self.tokens, self.num_prompt_tokens, *kept, self.states)


@dataclass(frozen=True, slots=True)
class Style:
    # 0 is greedy.
    temperature: float
    top_p: float
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Question:
    tokens: list[int]
    is_whole: bool


class Conversation:
    """A conversation in progress: the target completes the user message, then answers."""

    def __init__(
        self, number: int, frame: ChatFrame, num_cached: int, user: Style, answer: Style, question: Question
    ) -> None:
        self.number = number
        self._frame = frame
        self._answer = answer
        # `tokens` are in the cache; `pending` must be fed before the next token is sampled.
        self.tokens = frame.before[:num_cached]
        self.pending = frame.before[num_cached:] + question.tokens
        self.style = user
        self.is_done = False
        # Tokens written in the current message.
        self._num_written = 0
        self._num_prompt_tokens = 0
        self._positions: list[int] = []
        self._top_ids: list[NDArray[np.int32]] = []
        self._top_logprobs: list[NDArray[np.float16]] = []
        self._states: list[NDArray[np.uint16]] = []
        if question.is_whole:
            self._hand_over()

    def fed(self) -> None:
        self.tokens += self.pending
        self.pending = []

    def keep(self, states: NDArray[np.uint16]) -> None:
        """Keeps hidden states of the next tokens: [any number, num_taps, hidden_size]."""
        self._states.append(states)

    def write(self, token: int, ends: bool, top_ids: NDArray[np.int32], top_logprobs: NDArray[np.float16]) -> None:
        """Appends a sampled token and its distribution's likeliest tokens: [top]. `ends`: it is an EOS token."""
        is_answer = self._num_prompt_tokens > 0
        self._num_written += 1
        is_full = self._num_written >= self.style.max_tokens
        # The chat template ends the user message, so its EOS token is dropped.
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
        states = None
        if self._states:
            unread = np.zeros((len(tokens) - sum(map(len, self._states)), *self._states[0].shape[1:]), np.uint16)
            states = np.concatenate([*self._states, unread])
        top = np.stack(self._top_ids), np.stack(self._top_logprobs)
        return Record(tokens, self._num_prompt_tokens, written, *top, states)

    def _hand_over(self) -> None:
        self.pending += self._frame.after
        self._num_prompt_tokens = len(self.tokens) + len(self.pending)
        self.style = self._answer
        self._num_written = 0


class Corpus:
    """A folder of shards of conversations. A shard is written completely or not at all."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def shards(self) -> list[Path]:
        return sorted(self._folder.glob("shard-*.safetensors"))

    @property
    def num_written(self) -> int:
        return sum(int(_read_array(shard, "num_written").sum()) for shard in self.shards)

    @property
    def seconds(self) -> float:
        return sum(float(_read_array(shard, "seconds")[0]) for shard in self.shards)

    def add(self, records: list[Record], seconds: float) -> None:
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
        # A file that is mapped: states take a thousand times as much as tokens.
        of_states = path.with_suffix(STATES_SUFFIX)
        of_states.unlink(missing_ok=True)
        if records[0].states is not None:
            shape = len(arrays["tokens"]), *records[0].states.shape[1:]
            mapped = np.lib.format.open_memmap(of_states, "w+", np.uint16, shape)
            end = 0
            for record in records:
                assert record.states is not None, "all records have states, or none"
                mapped[end : end + len(record.tokens)] = record.states
                end += len(record.tokens)
            mapped.flush()
        scratch = path.with_suffix(".part")
        tensors_on_disk.save_file(arrays, scratch)
        scratch.rename(path)


def read_shard(path: Path) -> Iterator[Record]:
    try:
        arrays = tensors_on_disk.load_file(path)
    except Exception as error:  # safetensors raises several types for files it can't read
        raise ConfigError(f"{path} can't be read: {error}") from error
    of_states = path.with_suffix(STATES_SUFFIX)
    states = np.load(of_states, mmap_mode="r") if of_states.exists() else None
    lengths = (arrays[name].tolist() for name in ("num_tokens", "num_prompt_tokens", "num_written"))
    token, row = 0, 0
    for num_tokens, num_prompt_tokens, num_written in zip(*lengths, strict=True):
        part = slice(row, row + num_written)
        written, top_ids, top_logprobs = (arrays[name][part] for name in ("written", "top_ids", "top_logprobs"))
        mine = slice(token, token + num_tokens)
        yield Record(
            arrays["tokens"][mine], num_prompt_tokens, written, top_ids, top_logprobs,
            None if states is None else states[mine],
        )  # fmt: skip
        token += num_tokens
        row += num_written


def _read_array(path: Path, name: str) -> NDArray[Any]:
    with tensors_on_disk.safe_open(path, framework="np") as opened:
        array: NDArray[Any] = opened.get_tensor(name)
        return array
