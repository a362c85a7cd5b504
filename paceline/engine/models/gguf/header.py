"""The header of a GGUF file; `gguf.GGUFReader` takes seconds for a large vocabulary.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import reprlib
import struct
from dataclasses import dataclass, replace
from typing import Any

from gguf import GGUF_DEFAULT_ALIGNMENT, GGUFValueType

from paceline.errors import ConfigError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# How `struct` spells a number. All are little-endian.
_NUMBERS = {
    GGUFValueType.UINT8: "B", GGUFValueType.INT8: "b", GGUFValueType.UINT16: "H", GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I", GGUFValueType.INT32: "i", GGUFValueType.UINT64: "Q", GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT32: "f", GGUFValueType.FLOAT64: "d", GGUFValueType.BOOL: "?",
}  # fmt: skip
_LENGTH = struct.Struct("<Q")
# The chat template. Further ones have this key, a dot and their name.
TEMPLATE = "tokenizer.chat_template"
# What the values of keys must be. An architecture's keys: see `config`.
_TEXT, _TRUTH, _WHOLE, _TEXTS, _NUMBER_LIST = (
    "a text",
    "true or false",
    "a whole number",
    "a list of texts",
    "a list of numbers",
)
_TYPES: dict[str, tuple[type, ...]] = {
    _TEXT: (str,), _TRUTH: (bool,), _WHOLE: (int,), _TEXTS: (str,), _NUMBER_LIST: (int, float),
}  # fmt: skip
_KINDS = {
    "general.architecture": _TEXT, "general.name": _TEXT, "general.alignment": _WHOLE, "split.count": _WHOLE,
    TEMPLATE: _TEXT, "tokenizer.ggml.model": _TEXT, "tokenizer.ggml.pre": _TEXT,
    "tokenizer.ggml.tokens": _TEXTS, "tokenizer.ggml.merges": _TEXTS, "tokenizer.ggml.scores": _NUMBER_LIST,
    "tokenizer.ggml.token_type": _NUMBER_LIST, "tokenizer.ggml.add_bos_token": _TRUTH,
    "tokenizer.ggml.add_eos_token": _TRUTH, "tokenizer.ggml.add_space_prefix": _TRUTH,
}  # fmt: skip


def _kind_of(key: str) -> str | None:
    if key.startswith("tokenizer.ggml.") and key.endswith("_token_id"):
        return _WHOLE
    return _TEXT if key.startswith(f"{TEMPLATE}.") else _KINDS.get(key)


def _is(value: Any, kind: str) -> bool:
    if kind not in (_TEXTS, _NUMBER_LIST):
        return type(value) in _TYPES[kind]
    # All of an array have one type.
    return isinstance(value, list) and all(type(each) in _TYPES[kind] for each in value[:1])


@dataclass(frozen=True, slots=True)
class TensorPlace:
    name: str
    # As Hugging Face has it: [out_features, in_features] or [features].
    shape: tuple[int, ...]
    # The number of a GGMLQuantizationType, or one that gguf does not know.
    format: int
    # From the beginning of the file.
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    metadata: dict[str, Any]
    places: tuple[TensorPlace, ...]

    def __post_init__(self) -> None:
        """Raises ConfigError, naming the key, if a value has another type than what reads it expects."""
        for key, value in self.metadata.items():
            kind = _kind_of(key)
            if kind is not None and not _is(value, kind):
                raise ConfigError(f"its {key} is {reprlib.repr(value)}; it must be {kind}")

    @property
    def architecture(self) -> str:
        """llama.cpp's name, or empty."""
        return str(self.metadata.get("general.architecture", ""))


def read_header(file: mmap.mmap) -> Header:
    """Reads the header. Raises ConfigError if the file is not GGUF, or truncated."""
    if file[:4] != MAGIC:
        raise ConfigError("it is not a GGUF file; other formats are loaded from a folder")
    cursor = _Cursor(file, len(MAGIC))
    try:
        version, num_tensors, num_keys = cursor.numbers("IQQ")
        if version not in VERSIONS:
            raise ConfigError(f"its GGUF version is {version}; supported: {', '.join(map(str, VERSIONS))}")
        metadata = {cursor.text(): cursor.value(*cursor.numbers("I")) for _ in range(num_keys)}
        if len(metadata) < num_keys:
            raise ConfigError("its header has a key twice")
        places = [cursor.place() for _ in range(num_tensors)]
    except (
        struct.error,
        ValueError,
        OverflowError,
        MemoryError,
        RecursionError,
        TypeError,
    ) as error:
        raise ConfigError(f"its header is corrupt or truncated ({error})") from error
    header = Header(metadata, ())
    if (alignment := metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)) < 1:
        raise ConfigError(f"its general.alignment is {alignment}; it must be positive")
    start = -(-cursor.position // alignment) * alignment
    return replace(
        header, places=tuple(TensorPlace(name, shape, kind, start + offset) for name, shape, kind, offset in places)
    )


class _Cursor:
    def __init__(self, file: mmap.mmap, position: int) -> None:
        self._file = file
        self.position = position

    def numbers(self, spelling: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{spelling}", self._file, self.position)
        self.position += struct.calcsize(f"<{spelling}")
        return values

    def text(self) -> str:
        return self._texts(1)[0]

    def value(self, kind: int) -> Any:
        kind = GGUFValueType(kind)
        if kind == GGUFValueType.STRING:
            return self.text()
        if kind != GGUFValueType.ARRAY:
            return self.numbers(_NUMBERS[kind])[0]
        kind, length = self.numbers("IQ")
        if kind == GGUFValueType.STRING:
            return self._texts(length)
        if kind == GGUFValueType.ARRAY:
            return [self.value(kind) for _ in range(length)]
        return list(self.numbers(f"{length}{_NUMBERS[GGUFValueType(kind)]}"))

    def place(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.text()
        (dimensions,) = self.numbers("I")
        shape = self.numbers(f"{dimensions}Q")[::-1]  # the file begins with in_features
        return name, shape, *self.numbers("IQ")

    def _texts(self, count: int) -> list[str]:
        # A vocabulary has 400,000 texts with its merges: no calls of ours in the loop.
        file, position, texts = self._file, self.position, []
        for _ in range(count):
            begin = position + _LENGTH.size
            position = begin + _LENGTH.unpack_from(file, position)[0]
            texts.append(file[begin:position].decode())
        self.position = position
        return texts
