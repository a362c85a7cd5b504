"""A GGUF file as a model, read in place under Hugging Face's tensor names."""

import hashlib
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from transformers import PreTrainedConfig

from paceline.engine.models.config import ModelConfig, expected_shapes
from paceline.engine.models.gguf.architectures import ARCHITECTURES
from paceline.engine.models.gguf.config import read_config
from paceline.engine.models.gguf.header import Header, read_header
from paceline.engine.models.gguf.tensors import FileTensor, file_tensor
from paceline.engine.models.gguf.tokenizer import tokenizer_files
from paceline.errors import ConfigError


def tensor_names(architecture: str, config: ModelConfig) -> dict[str, str]:
    """Returns our names by llama.cpp's."""
    identifier = next(known for known, name in MODEL_ARCH_NAMES.items() if name == architecture)
    theirs = get_tensor_name_map(identifier, config.num_layers)
    pairs = ((theirs.get_name(name, (".weight", ".bias")), name) for name in expected_shapes(config))
    return {their_name: name for their_name, name in pairs if their_name is not None}


# Divisors of the rotary frequencies (Llama 3.1 and later): a tensor that belongs to the config.
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufModel:
    config: PreTrainedConfig
    # With Hugging Face's names.
    tensors: dict[str, FileTensor]
    tokenizer_files: dict[str, bytes]
    # The beginning of the file's `sha256sum`.
    fingerprint: str
    mapping: mmap.mmap

    def drop_pages(self) -> None:
        """Drops pages from memory; the file is read again on access."""
        self.mapping.madvise(mmap.MADV_DONTNEED)


def read_gguf(path: Path) -> GgufModel:
    """Maps the file and reads all but its tensors. Raises ConfigError, with the file and the reason, if it can't."""
    with _naming(path):
        mapping, header, config = _read_beginning(path)
        # One thread for the digest, meanwhile the tokenizer is read. Hashing the mapping in one call needs
        # no lock of Python's; a file's digest would take it for every part, and wait for it.
        with ThreadPoolExecutor(1) as other_thread:
            tensors = _tensors(mapping, header, config)
            digest = other_thread.submit(hashlib.sha256, mapping)
            files = tokenizer_files(header)
            return GgufModel(config, tensors, files, digest.result().hexdigest()[:16], mapping)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except (ConfigError, OSError) as error:
        raise ConfigError(f"model {str(path)!r} could not be read: {error}") from error


def _read_beginning(path: Path) -> tuple[mmap.mmap, Header, PreTrainedConfig]:
    with path.open("rb") as opened:
        if not path.stat().st_size:
            raise ConfigError("it is empty")
        mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    header = read_header(mapping)
    factors = next((place for place in header.places if place.name == ROPE_FACTORS), None)
    return (
        mapping,
        header,
        read_config(header, None if factors is None else file_tensor(mapping, factors).dequantised()),
    )


def _tensors(mapping: mmap.mmap, header: Header, config: PreTrainedConfig) -> dict[str, FileTensor]:
    model, interleaves_heads = (
        ModelConfig.from_transformers(config),
        ARCHITECTURES[header.architecture].interleaves_heads,
    )
    names, tensors = tensor_names(header.architecture, model), {}
    for place in header.places:
        if place.name == ROPE_FACTORS:
            continue
        if place.name not in names:
            raise ConfigError(f"its tensor {place.name!r} is not part of a supported {header.architecture} model")
        name = names[place.name]
        tensors[name] = file_tensor(mapping, place, _heads(name, config) if interleaves_heads else None)
        if model.architecture.norm_offset and name.endswith("norm.weight"):
            # llama.cpp's converter has added it.
            tensors[name] = tensors[name].less(model.architecture.norm_offset)
    return tensors


def _heads(name: str, config: PreTrainedConfig) -> int | None:
    if ".self_attn.q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".self_attn.k_proj." in name else None
