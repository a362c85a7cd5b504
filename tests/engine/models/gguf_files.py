"""Tiny GGUF files, of all architectures, with tensors and keys as wanted."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quant_shape_to_byte_shape
from transformers.convert_slow_tokenizer import bytes_to_unicode

from paceline.engine.arrays import Array
from paceline.engine.models.gguf.file import read_gguf
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.rope import rope_tables

VOCAB, HIDDEN, INNER, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 40, 256, 512, 2, 4, 2, 64
F32 = GGMLQuantizationType.F32
SHAPES: dict[str, tuple[int, ...]] = {
    "attn_norm.weight": (HIDDEN,), "ffn_norm.weight": (HIDDEN,), "attn_q.weight": (HEADS * HEAD_DIM, HIDDEN),
    "attn_k.weight": (KV_HEADS * HEAD_DIM, HIDDEN), "attn_v.weight": (KV_HEADS * HEAD_DIM, HIDDEN),
    "attn_output.weight": (HIDDEN, HEADS * HEAD_DIM), "ffn_gate.weight": (INNER, HIDDEN),
    "ffn_up.weight": (INNER, HIDDEN), "ffn_down.weight": (HIDDEN, INNER),
}  # fmt: skip
BIASES = {f"attn_{name}.bias": SHAPES[f"attn_{name}.weight"][:1] for name in "qkv"}
NORMS = {"attn_q_norm.weight": (HEAD_DIM,), "attn_k_norm.weight": (HEAD_DIM,)}
EOS = {"eos": 30}
Blocks = dict[str, tuple[Array, GGMLQuantizationType]]


def random_blocks(architecture: str, matrices: GGMLQuantizationType, untied: bool = False) -> Blocks:
    """Tensors in llama.cpp's names: bytes that are finite numbers in every format. Vectors are float32."""
    in_a_layer = SHAPES | {"llama": {}, "qwen2": BIASES, "qwen3": NORMS}[architecture]
    shapes = {"token_embd.weight": (VOCAB, HIDDEN), "output_norm.weight": (HIDDEN,)}
    shapes |= {"output.weight": (VOCAB, HIDDEN)} if untied else {}
    shapes |= {f"blk.{i}.{name}": shape for i in range(LAYERS) for name, shape in in_a_layer.items()}
    generator, blocks = np.random.default_rng(7), {}
    for name, shape in shapes.items():
        layout = matrices if len(shape) == 2 else F32
        # No byte of 0x7c or more: no infinity, and no NaN.
        data = generator.integers(0, 0x7C, quant_shape_to_byte_shape(shape, layout), dtype=np.uint8)
        blocks[name] = data, layout
    return blocks


def add_byte_level_tokenizer(
    writer: GGUFWriter, control: str = "<|end|>", ids: Mapping[str, int] = EOS, own: str = "<think>"
) -> None:
    """Letters, three merges, a control token (id 30) and a user's `own`. `ids`: keys tokenizer.ggml.NAME_token_id."""
    tokens = [*"abcdefghijklmnopqrstuvwxyz", "ab", "abc", "Ġ", "Ġa", control, own]
    tokens += [f"<|{i}|>" for i in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * 30 + [3, 4] + [3] * (VOCAB - 32))
    writer.add_token_merges(["a b", "ab c", "Ġ a"])
    for name, token_id in ({"bos": 32} | dict(ids)).items():
        writer.add_uint32(f"tokenizer.ggml.{name}_token_id", token_id)
    writer.add_chat_template("{{ bos_token }}{{ messages[0]['content'] }}")


def add_sentencepiece_tokenizer(writer: GGUFWriter, **_: Any) -> None:
    """As Llama 2 has it: scores and no merges."""
    tokens = ["<unk>", "<s>", "</s>", "▁", *"abcdefghijklmnopqrstuvwxyz", "ab", "abc", "▁a"]
    tokens += [f"<extra{i}>" for i in range(VOCAB - len(tokens))]
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-float(i) for i in range(VOCAB)])
    writer.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def write_gguf(
    path: Path, architecture: str, blocks: Blocks, add_tokenizer: Any = add_byte_level_tokenizer, **metadata: Any
) -> Path:
    """A tiny model. `metadata`: keys behind the architecture's name, "." as "__"; None leaves a key out."""
    writer = GGUFWriter(path, architecture)
    keys: dict[str, Any] = {
        "context_length": 512, "embedding_length": HIDDEN, "block_count": LAYERS, "feed_forward_length": INNER,
        "attention.head_count": HEADS, "attention.head_count_kv": KV_HEADS, "attention.key_length": HEAD_DIM,
        "rope.dimension_count": HEAD_DIM, "rope.freq_base": 20_000.0, "attention.layer_norm_rms_epsilon": 1e-5,
    } | {key.replace("__", "."): value for key, value in metadata.items()}  # fmt: skip
    for key, value in keys.items():
        add = {
            int: writer.add_uint32, float: writer.add_float32, str: writer.add_string, bool: writer.add_bool,
        }.get(type(value))  # fmt: skip
        if add is not None:
            add(key if key.startswith("split.") else f"{architecture}.{key}", value)
    add_tokenizer(writer)
    for name, (data, layout) in blocks.items():
        writer.add_tensor(name, data, raw_dtype=layout)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny(folder: Path, architecture: str = "llama", layout: GGMLQuantizationType = F32, **metadata: Any) -> Path:
    return write_gguf(folder / "tiny.gguf", architecture, random_blocks(architecture, layout), **metadata)


def frequencies(path: Path) -> tuple[torch.Tensor, float]:
    """The rotary angles at position 1, [head_dim / 2], and the factor of cosines and sines."""
    cos, sin = (
        table[:, HEAD_DIM // 2 :] for table in rope_tables(ModelConfig.from_transformers(read_gguf(path).config), 2)
    )
    return torch.atan2(sin[1], cos[1]), float(cos[0, 0])


def sentencepiece_vocabulary(tokens: list[str], types: list[int]) -> tuple[list[str], list[int], list[float]]:
    """The words of a byte-level vocabulary as a sentencepiece one: tokens, types, scores. Bytes have tokens of their own.

    Words with a character that is not a word by itself are left out, as in trained vocabularies.
    """
    byte_of = {spelled: byte for byte, spelled in bytes_to_unicode().items()}
    words: dict[str, None] = {}
    for token, kind in zip(tokens, types, strict=True):
        if kind == 1:
            with suppress(UnicodeDecodeError):
                words[bytes(byte_of[each] for each in token).decode().replace(" ", "▁")] = None
    kept = [word for word in words if all(each in words for each in word)]
    names = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    scores = [0.0] * len(names) + [-float(rank) for rank in range(len(kept))]
    return names + kept, [2, 3, 3] + [6] * 256 + [1] * len(kept), scores
