"""GGUF files with random weights in published shapes, as llama.cpp's converter and quantizer would write them."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter, LlamaFileType
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from benchmarks.peers.dummy_vocabulary import BOS_TOKEN_ID, CHAT_TEMPLATE, EOS_TOKEN_ID, DummyVocabulary
from benchmarks.peers.random_blocks import RandomBlocks, num_bytes
from paceline.engine.models.dummy import dummy_config

FILE_TYPES = {
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_k_m": LlamaFileType.MOSTLY_Q4_K_M,
}
QUANTIZATION_VERSION = 2


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    # Rows and columns; one number for a vector.
    shape: tuple[int, ...]
    kind: GGMLQuantizationType


def dummy_gguf(name: str, weights: str, folder: Path) -> Path:
    """Returns the file, made on first use with a Llama 3 vocabulary. `weights`: a key of FILE_TYPES."""
    made = folder / f"dummy-{name}.{weights.upper()}.gguf"
    if not made.exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = made.with_suffix(f".{os.getpid()}")
        try:
            _write(dummy_config(name), name, weights, unfinished)
            unfinished.rename(made)
        finally:
            unfinished.unlink(missing_ok=True)
    return made


def _write(config: LlamaConfig, name: str, weights: str, file: Path) -> None:
    writer = GGUFWriter(file, "llama")
    _add_shape(writer, config, name, weights)
    _add_vocabulary(writer)
    entries = list(_entries(config, weights))
    for entry in entries:
        writer.add_tensor_info(
            entry.name, entry.shape, np.dtype(np.float32), num_bytes(entry.kind, entry.shape), entry.kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    blocks = {kind: RandomBlocks(kind) for kind in {entry.kind for entry in entries if len(entry.shape) == 2}}
    for entry in entries:
        if entry.name == "rope_freqs.weight":
            writer.write_tensor_data(_rope_factors(config))
        elif len(entry.shape) == 1:
            writer.write_tensor_data(np.ones(entry.shape, np.float32))
        else:
            writer.write_tensor_data(blocks[entry.kind].tensor((entry.shape[0], entry.shape[1])))
    writer.close()


def _add_shape(writer: GGUFWriter, config: LlamaConfig, name: str, weights: str) -> None:
    writer.add_type("model")
    writer.add_name(f"dummy {name}")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_file_type(FILE_TYPES[weights])
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_quantization_version(QUANTIZATION_VERSION)


def _add_vocabulary(writer: GGUFWriter) -> None:
    vocabulary = DummyVocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    writer.add_token_merges(vocabulary.merges)
    writer.add_bos_token_id(BOS_TOKEN_ID)
    writer.add_eos_token_id(EOS_TOKEN_ID)
    writer.add_chat_template(CHAT_TEMPLATE)


def _entries(config: LlamaConfig, weights: str) -> Iterator[Entry]:
    """Yields all tensors. The embedding is the output too, so it has the output's type."""
    hidden, inner = config.hidden_size, config.intermediate_size
    query, key = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    vector = GGMLQuantizationType.F32
    most, best = {
        "bf16": (GGMLQuantizationType.BF16, GGMLQuantizationType.BF16),
        "q8_0": (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q8_0),
        "q4_k_m": (GGMLQuantizationType.Q4_K, GGMLQuantizationType.Q6_K),
    }[weights]
    yield Entry("output_norm.weight", (hidden,), vector)
    yield Entry("rope_freqs.weight", (config.head_dim // 2,), vector)
    yield Entry("token_embd.weight", (config.vocab_size, hidden), best)
    for i in range(config.num_hidden_layers):
        some = best if _gets_more_bits(i, config.num_hidden_layers) else most
        yield from (
            Entry(f"blk.{i}.attn_k.weight", (key, hidden), most),
            Entry(f"blk.{i}.attn_norm.weight", (hidden,), vector),
            Entry(f"blk.{i}.attn_output.weight", (hidden, query), most),
            Entry(f"blk.{i}.attn_q.weight", (query, hidden), most),
            Entry(f"blk.{i}.attn_v.weight", (key, hidden), some),
            Entry(f"blk.{i}.ffn_down.weight", (hidden, inner), some),
            Entry(f"blk.{i}.ffn_gate.weight", (inner, hidden), most),
            Entry(f"blk.{i}.ffn_norm.weight", (hidden,), vector),
            Entry(f"blk.{i}.ffn_up.weight", (inner, hidden), most),
        )


def _gets_more_bits(layer: int, layers: int) -> bool:
    """llama.cpp's `use_more_bits`: layers whose values and down projections are Q6_K in a Q4_K_M file."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def _rope_factors(config: LlamaConfig) -> np.ndarray:
    """Returns [head_dim / 2] float32, by which llama.cpp divides the rotary frequencies."""
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, torch.device("cpu"))
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    plain = 1.0 / config.rope_parameters["rope_theta"] ** exponents
    return (plain / scaled).numpy().astype(np.float32)
