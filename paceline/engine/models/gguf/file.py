"""A GGUF file as a model, read in place under Hugging Face's tensor names."""

import hashlib
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
from transformers import PreTrainedConfig

from paceline.engine.models.architectures import ARCHITECTURES as KNOWN
from paceline.engine.models.gguf.architectures import ARCHITECTURES
from paceline.engine.models.gguf.gguf_config import read_config
from paceline.engine.models.gguf.header import Header, read_header
from paceline.engine.models.gguf.tensors import FileTensor, Parts, file_tensor
from paceline.engine.models.gguf.tokenizer import tokenizer_files
from paceline.engine.models.model_config import ModelConfig, expected_shapes
from paceline.engine.models.supported_modules import parameter_names, typed
from paceline.errors import ConfigError

# The experts' matrices that transformers joins and a file has apart.
GATE_UP, GATE, UP = "experts.gate_up_proj", "experts.gate_proj", "experts.up_proj"


def tensor_names(architecture: str, config: PreTrainedConfig) -> dict[str, str]:
    """Returns our names by llama.cpp's."""
    identifier = next(known for known, name in MODEL_ARCH_NAMES.items() if name == architecture)
    theirs = get_tensor_name_map(identifier, config.num_hidden_layers)
    names = {}
    for name in _our_names(config):
        alias = name
        for ours, known in ARCHITECTURES[architecture].aliases.items():
            alias = alias.replace(ours, known)
        if (their_name := theirs.get_name(alias, (".weight", ".bias"))) is not None:
            names[their_name if name.endswith((".weight", ".bias")) else f"{their_name}.weight"] = name
    return names


def _our_names(config: PreTrainedConfig) -> list[str]:
    if config.model_type in KNOWN:
        return list(expected_shapes(ModelConfig.from_transformers(config)))
    return [name.replace(GATE_UP, half) for name in parameter_names(typed(config)) for half in (GATE, UP)]


# Divisors of the rotary frequencies (Llama 3.1 and later): a tensor that belongs to the config.
ROPE_FACTORS = "rope_freqs.weight"


@dataclass(frozen=True, slots=True)
class GgufModel:
    config: PreTrainedConfig
    # With Hugging Face's names.
    tensors: dict[str, FileTensor | Parts]
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
        read_config(header, None if factors is None else file_tensor(mapping, factors).dequantized()),
    )


def _tensors(mapping: mmap.mmap, header: Header, config: PreTrainedConfig) -> dict[str, FileTensor | Parts]:
    interleaves_heads = ARCHITECTURES[header.architecture].interleaves_heads
    norm_offset = KNOWN[config.model_type].norm_offset if config.model_type in KNOWN else 0.0
    names = tensor_names(header.architecture, config)
    tensors: dict[str, Any] = {}
    for place in header.places:
        if place.name == ROPE_FACTORS:
            continue
        if place.name not in names:
            raise ConfigError(f"its tensor {place.name!r} is not part of a supported {header.architecture} model")
        name = names[place.name]
        if name in tensors:
            raise ConfigError(f"it has the tensor {place.name!r} twice")
        tensor = file_tensor(mapping, place, _heads(name, config) if interleaves_heads else None)
        # llama.cpp's converter has added it.
        tensors[name] = tensor.less(norm_offset) if norm_offset and name.endswith("norm.weight") else tensor
    for gate in [name for name in tensors if name.endswith(GATE)]:
        if (up := gate.replace(GATE, UP)) in tensors:
            tensors[gate.replace(GATE, GATE_UP)] = tensors.pop(gate), tensors.pop(up)
    return tensors


def _heads(name: str, config: PreTrainedConfig) -> int | None:
    if ".self_attn.q_proj." in name:
        return int(config.num_attention_heads)
    return int(config.num_key_value_heads) if ".self_attn.k_proj." in name else None
