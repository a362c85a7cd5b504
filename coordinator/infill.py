"""Tokenizes fill-in-the-middle prompts: PREFIX text SUFFIX text MIDDLE, and the model goes on.

Special tokens that a text spells are plain text there, as in chats.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from tokenizers import AddedToken

from coordinator.control_tokens import ControlTokens
from coordinator.tokenizer import Tokenizer
from paceline.errors import InvalidArgument
from paceline.infill_prompt import Infill

T = TypeVar("T", str, list[int])

# Far above the average length of a token: a longer text certainly has too many tokens.
MAX_CHARACTERS_PER_TOKEN = 32
# Requests name neither. llama.cpp writes the same names.
REPOSITORY, FILE = "myproject", "filename"


@dataclass(frozen=True, slots=True)
class Family:
    """The names of special tokens."""

    prefix: str
    suffix: str
    middle: str
    pad: str = ""
    # Before a repository's name and a file's. Empty: the model gets no other files.
    repository: str = ""
    file: str = ""


FAMILIES = (
    # Qwen2.5-Coder.
    Family("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>"),
    # Granite and StarCoder.
    Family("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>"),
    # DeepSeek-Coder.
    Family("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),
)


class InfillPrompts:
    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    @property
    def ending_ids(self) -> list[int]:
        """Returns the format's own tokens: each ends the middle, as the model's end tokens do."""
        family = self._known_family
        names = (family.prefix, family.suffix, family.middle, family.pad, family.repository, family.file)
        return [self._ids[name] for name in names if name in self._ids]

    def encode(self, infill: Infill, max_length: int) -> list[int]:
        """Leaves a quarter of `max_length` to the middle, whatever max_tokens is, so that a request that only warms the
        cache reads the same prompt.

        Raises InvalidArgument if the model has no such format.
        """
        family = self._known_family
        room = max(0, max_length - max_length // 4 - len(self._bos) - 3)
        most_characters = max_length * MAX_CHARACTERS_PER_TOKEN
        step = max(1, max_length // 8)
        # After MIDDLE the line would leave the suffix cached, but models continue a broken-off word well only from the prefix.
        before = infill.prefix + infill.prompt
        prefix = self._tokens_of(_newest(before, most_characters, step * MAX_CHARACTERS_PER_TOKEN))
        suffix = self._tokens_of(infill.suffix[:most_characters])
        # At least a quarter for the suffix, and what the prefix does not need.
        suffix = suffix[: max(room // 4, room - len(prefix))]
        prefix = _newest(prefix, room - len(suffix), step)
        return [
            *self._bos,
            *self._files(infill, room - len(prefix) - len(suffix)),
            self._ids[family.prefix], *prefix,
            self._ids[family.suffix], *suffix,
            self._ids[family.middle],
        ]  # fmt: skip

    def _files(self, infill: Infill, room: int) -> list[int]:
        """Returns the newest files that fit, and the beginning of the one to fill."""
        family, ids = self._known_family, self._ids
        if family.repository not in ids or family.file not in ids:
            return []
        head = [ids[family.repository], *self._tokens_of(f"{REPOSITORY}\n")]
        tail = [ids[family.file], *self._tokens_of(f"{FILE}\n")]
        room -= len(head) + len(tail)
        kept: list[list[int]] = []
        for name, text in reversed(infill.extra):
            # A text that is far too long is not even tokenized.
            if len(name) + len(text) > max(0, room) * MAX_CHARACTERS_PER_TOKEN:
                break
            file = [ids[family.file], *self._tokens_of(f"{name}\n{text}")]
            if len(file) > room:
                break
            room -= len(file)
            kept.append(file)
        return [*head, *(token for file in reversed(kept) for token in file), *tail] if kept else []

    def _tokens_of(self, text: str) -> list[int]:
        return self._control_tokens.encode(self._control_tokens.mark(text)) if text else []

    @cached_property
    def _added(self) -> dict[int, AddedToken]:
        return dict(self._tokenizer.backend.get_added_tokens_decoder())

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {str(token): token_id for token_id, token in self._added.items()}

    @cached_property
    def _known_family(self) -> Family:
        known = (each for each in FAMILIES if self._ids.keys() >= {each.prefix, each.suffix, each.middle})
        family = next(known, None)
        if family is None:
            raise InvalidArgument(
                "infill", "is not supported: this model has no fill-in-the-middle tokens; send text instead"
            )
        return family

    @cached_property
    def _bos(self) -> list[int]:
        """Returns what the tokenizer itself puts before a text."""
        name = self._tokenizer.special_tokens["bos_token"]
        first = self._tokenizer.encode("")[:1]
        return first if name is not None and first == [self._ids.get(name)] else []

    @cached_property
    def _control_tokens(self) -> ControlTokens:
        # In some models the tokens of the format are not marked as special.
        others = {*self.ending_ids}
        ids = [
            token_id
            for name, token_id in self._ids.items()
            if len(name) > 1 and (token_id in others or self._added[token_id].special)
        ]
        return ControlTokens(self._tokenizer.backend, ids)


def _newest(whole: T, room: int, step: int) -> T:
    """Returns the end of a text or of its tokens. Cut in steps: a text that grows keeps its cached beginning."""
    surplus = max(0, len(whole) - room)
    return whole[-(-surplus // step) * step :]
