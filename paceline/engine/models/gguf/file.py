"""A GGUF file read in place: its tensors are views of the mapped file, and nothing is converted.

Metadata, configuration and tokenizer come from the file itself, with transformers' reader.
"""

import hashlib
import mmap
import re
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerFast
from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
from transformers.integrations.gguf.reader import _read_metadata, _read_tensor_table

from paceline.engine.arrays import Array
from paceline.engine.models.gguf.tensors import BLOCK_FORMATS, FLOAT_FORMATS, FileTensor, as_float32
from paceline.errors import ConfigError

ARCHITECTURES = {"llama": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
# Factors that divide the rotary frequencies (Llama 3.1 and later).
ROPE_FACTORS = "rope_freqs.weight"
# Bytes that are hashed by one thread.
_PART_BYTES = 64 << 20
_LAYER_NAMES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}  # fmt: skip
# Block sizes and bytes by the numbers of the file's types.
_TYPES = {
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 30: ("BF16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22), 7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class GgufModel:
    """What a file holds, with Hugging Face's names."""

    config: PreTrainedConfig
    # Matrices in blocks as they are; everything else as a tensor of float32, or bfloat16 where the file has that.
    tensors: dict[str, FileTensor | torch.Tensor]
    tokenizer_files: dict[str, bytes]
    # Hex digest of all of the file.
    fingerprint: str
    mapped: mmap.mmap

    def drop_pages(self) -> None:
        """Gives back the memory of what was read: the system reads it again from the file where it is used again."""
        self.mapped.madvise(mmap.MADV_DONTNEED)


def read_gguf(path: Path) -> GgufModel:
    """Reads metadata; tensors are read when they are used. Raises ConfigError if the file can't be used."""
    with path.open("rb") as opened:
        try:
            # A mapping that may be written to, for torch's sake; nobody writes.
            mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)
            metadata, num_tensors, position = _read_metadata(mapped, str(path))
            table, position = _read_tensor_table(mapped, num_tensors, position)
        except Exception as error:  # the reader raises many types for files it can't read
            raise ConfigError(f"model {str(path)!r} could not be read: {_first_line(error)}") from error
    architecture = metadata.get("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"model {str(path)!r}: architecture {architecture!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
        )
    alignment = metadata.get("general.alignment", 32)
    contents = np.frombuffer(mapped, np.uint8)
    start = -(-position // alignment) * alignment
    raw = {name: _raw_tensor(path, contents, name, shape, kind, start + at) for name, shape, kind, at in table}
    with ThreadPoolExecutor() as threads:
        # Hashing leaves the interpreter to the reading of the tokenizer.
        digest = threads.submit(_digest, mapped)
        try:
            config = _config(metadata, architecture, raw)
            tokenizer_files = _tokenizer_files(path)
        except Exception as error:  # as above
            raise ConfigError(f"model {str(path)!r} could not be read: {_first_line(error)}") from error
        tensors = {ours: _as_ours(ours, each, config) for name, each in raw.items() if (ours := _our_name(name))}
        return GgufModel(config, tensors, tokenizer_files, digest.result(), mapped)


@dataclass(frozen=True, slots=True, eq=False)
class _RawTensor:
    format: str
    shape: tuple[int, ...]
    data: Array  # [rows, bytes of a row]; a vector has one row

    def as_float32(self) -> Array:
        return as_float32(self.data, self.format, self.shape)


def _raw_tensor(path: Path, contents: Array, name: str, shape: tuple[int, ...], kind: int, start: int) -> _RawTensor:
    if kind not in _TYPES:
        raise ConfigError(
            f"model {str(path)!r}: tensor {name} has type {kind}, which is not supported; supported: "
            f"{', '.join((*FLOAT_FORMATS, *BLOCK_FORMATS))}"
        )
    found, block_elements, block_bytes = _TYPES[kind]
    row_bytes, rows = shape[-1] // block_elements * block_bytes, int(np.prod(shape[:-1], dtype=np.int64))
    if start + rows * row_bytes > contents.size:
        raise ConfigError(f"model {str(path)!r} is cut off: tensor {name} ends behind the file's end")
    return _RawTensor(found, tuple(shape), contents[start : start + rows * row_bytes].reshape(rows, row_bytes))


def _our_name(name: str) -> str | None:
    """Hugging Face's name; None for what is no tensor of the model."""
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.(weight|bias)", name):
        layer, part, kind = match.groups()
        return f"model.layers.{layer}.{_LAYER_NAMES.get(part, part)}.{kind}"
    return _NAMES.get(name)


def _as_ours(name: str, raw: _RawTensor, config: PreTrainedConfig) -> FileTensor | torch.Tensor:
    order = _row_order(name, raw.shape[0], config)
    if raw.format in BLOCK_FORMATS:
        return FileTensor(raw.format, (raw.shape[0], raw.shape[1]), raw.data, order)
    if raw.format == "BF16":
        tensor = torch.from_numpy(raw.data.view(np.int16)).view(torch.bfloat16).reshape(raw.shape)
    else:
        tensor = torch.from_numpy(raw.as_float32())
    return tensor if order is None else tensor[torch.from_numpy(order)]


def _row_order(name: str, num_rows: int, config: PreTrainedConfig) -> Array | None:
    """llama.cpp rotates neighbours, we (as Hugging Face) halves: it keeps a head's rows in the order 0, d/2, 1, ..."""
    if config.model_type != "llama" or not re.search(r"self_attn\.[qk]_proj", name):
        return None
    heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
    return np.arange(num_rows).reshape(heads, num_rows // heads // 2, 2).swapaxes(1, 2).reshape(-1).copy()


def _config(metadata: dict[str, Any], architecture: str, raw: dict[str, _RawTensor]) -> PreTrainedConfig:
    def field(name: str, default: Any = None) -> Any:
        return metadata.get(f"{architecture}.{name}", default)

    hidden, heads = field("embedding_length"), field("attention.head_count")
    max_len, theta = field("context_length"), field("rope.freq_base", 10000.0)
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": theta}
    if ROPE_FACTORS in raw:
        factors = raw[ROPE_FACTORS].as_float32().tolist()
        # The same at every length: what transformers calls "longrope".
        rope |= {
            "rope_type": "longrope", "short_factor": factors, "long_factor": factors, "attention_factor": 1.0,
            "original_max_position_embeddings": max_len,
        }  # fmt: skip
    eos = metadata.get("tokenizer.ggml.eos_token_id")
    return AutoConfig.for_model(
        ARCHITECTURES[architecture],
        vocab_size=raw["token_embd.weight"].shape[0],
        hidden_size=hidden,
        intermediate_size=field("feed_forward_length"),
        num_hidden_layers=field("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=field("attention.head_count_kv", heads),
        head_dim=field("attention.key_length", hidden // heads),
        rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
        max_position_embeddings=max_len,
        rope_parameters=rope,
        tie_word_embeddings="output.weight" not in raw,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=eos,
    )


def _tokenizer_files(path: Path) -> dict[str, bytes]:
    """The files that transformers would save."""
    architecture, described, options = get_gguf_tokenizer(str(path))
    backend, more = convert_gguf_tokenizer(architecture, described)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **options, **more)
    with tempfile.TemporaryDirectory(prefix="paceline-tokenizer-") as folder:
        tokenizer.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _digest(mapped: mmap.mmap) -> str:
    """Of all of the file, part by part."""
    view = memoryview(mapped)
    starts = range(0, len(view), _PART_BYTES)
    whole = hashlib.sha256()
    for start in starts:
        whole.update(hashlib.sha256(view[start : start + _PART_BYTES]).digest())
    return whole.hexdigest()[:16]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
