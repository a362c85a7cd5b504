"""GGUF files read in place: the same numbers and config that transformers makes of them. Tokenizers: test_gguf_tokenizers.py."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from transformers import AutoModelForCausalLM, GgufConfig

from paceline.engine.arrays import Array
from paceline.engine.models.gguf.file import GgufModel, read_gguf
from paceline.engine.models.gguf.tensors import FORMATS
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.rope import rope_tables
from paceline.engine.models.weights import find_gguf
from paceline.errors import ConfigError
from tests.engine.models.gguf_files import (
    BIASES,
    F32,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    VOCAB,
    frequencies,
    random_blocks,
    tiny,
    write_gguf,
)  # fmt: skip

ARCHITECTURES = ("llama", "qwen2", "qwen3")


def embedded() -> Path:
    found = find_gguf("smollm2-135m")
    assert found is not None
    return found


def assert_equals_transformers(path: Path) -> None:
    """Tensors bit for bit, and the config as we read it."""
    ours = read_gguf(path)
    theirs = AutoModelForCausalLM.from_pretrained(
        path.parent, gguf_file=path.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    expected = theirs.state_dict()
    if ours.config.tie_word_embeddings:
        expected.pop("lm_head.weight")
    assert ours.tensors.keys() == expected.keys()
    for name, tensor in ours.tensors.items():
        assert tensor.shape == tuple(expected[name].shape)
        assert np.array_equal(tensor.dequantized().view(np.int32), expected[name].numpy().view(np.int32)), name
    assert_same_config(ours, theirs.config)


def assert_same_config(ours: GgufModel, theirs: Any) -> None:
    one, other = ModelConfig.from_transformers(ours.config), ModelConfig.from_transformers(theirs)
    for field in (name for name in ModelConfig.__slots__ if name != "source"):
        assert getattr(one, field) == getattr(other, field), field
    for table, expected in zip(rope_tables(one, 100), rope_tables(other, 100), strict=True):
        assert torch.equal(table, expected)


@pytest.mark.slow
def test_the_embedded_file_is_what_transformers_reads() -> None:
    assert_equals_transformers(embedded())


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("untied", [False, True])
def test_every_architecture_is_what_transformers_reads(tmp_path: Path, architecture: str, untied: bool) -> None:
    # transformers does not read Qwen3's head_dim, and its default is another.
    wide = {"attention__key_length": 128, "attention__value_length": 128, "rope__dimension_count": 128}
    metadata = wide if architecture == "qwen3" else {}
    blocks = random_blocks(architecture, GGMLQuantizationType.Q8_0, untied)
    if architecture == "qwen3":
        blocks = {name: widened(name, data, layout) for name, (data, layout) in blocks.items()}
    path = write_gguf(tmp_path / "tiny.gguf", architecture, blocks, **metadata)
    assert read_gguf(path).config.tie_word_embeddings != untied
    assert_equals_transformers(path)


def widened(name: str, data: Array, layout: GGMLQuantizationType) -> tuple[Array, GGMLQuantizationType]:
    """The same with heads of 128 features."""
    if "_norm" in name and data.shape[-1] == 4 * HEAD_DIM:
        return np.tile(data, 2), layout
    if "attn_output" in name:
        return np.tile(data, (1, 2)), layout
    if any(f".attn_{kind}.weight" in name for kind in "qkv"):
        return np.tile(data, (2, 1)), layout
    return data, layout


def permuted(rows: Array, num_heads: int) -> Array:
    """Rows of a projection in the order of llama.cpp's files: its converter's `permute`."""
    return rows.reshape(num_heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("layout", FORMATS, ids=lambda layout: layout.name)
def test_every_format_is_read_row_by_row(tmp_path: Path, layout: GGMLQuantizationType) -> None:
    blocks = random_blocks("llama", layout)
    tensors = read_gguf(write_gguf(tmp_path / "tiny.gguf", "llama", blocks)).tensors
    ids = np.array([3, 0, 3, 39, 17])
    for name, theirs, heads in (
        ("model.embed_tokens", "token_embd", 0),
        ("model.layers.1.mlp.down_proj", "blk.1.ffn_down", 0),
        ("model.layers.1.self_attn.q_proj", "blk.1.attn_q", HEADS),
        ("model.layers.1.self_attn.k_proj", "blk.1.attn_k", KV_HEADS),
    ):
        tensor, in_file = tensors[f"{name}.weight"], dequantize(blocks[f"{theirs}.weight"][0], layout)
        values = tensor.dequantized()
        assert tensor.format == layout
        assert values.dtype == np.float32
        assert np.array_equal(permuted(values, heads) if heads else values, in_file)
        assert np.array_equal(tensor.rows(ids), values[ids])


def test_only_llama_has_reordered_rows_and_biases(tmp_path: Path) -> None:
    for architecture in ARCHITECTURES:
        blocks = random_blocks(architecture, F32)
        names = {"attn_q.weight": HEADS, "attn_k.weight": KV_HEADS}
        if architecture != "qwen3":
            names |= {"attn_q.bias": HEADS, "attn_k.bias": KV_HEADS}
            blocks |= {f"blk.0.{name}": random_blocks("qwen2", F32)[f"blk.0.{name}"] for name in BIASES}
        tensors = read_gguf(write_gguf(tmp_path / f"{architecture}.gguf", architecture, blocks)).tensors
        for name, heads in names.items():
            letter, kind = name.removeprefix("attn_").split(".")
            values = tensors[f"model.layers.0.self_attn.{letter}_proj.{kind}"].dequantized()
            in_file = blocks[f"blk.0.{name}"][0].view(np.float32)
            assert np.array_equal(permuted(values, heads) if architecture == "llama" else values, in_file)


def test_tensors_are_views_of_the_file_and_numbers_are_not(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    tensor = read_gguf(path).tensors["model.norm.weight"]
    assert not tensor.data.flags.owndata
    values = tensor.dequantized()
    with path.open("r+b") as file:  # the mapping sees it
        file.seek(path.read_bytes().index(tensor.data.tobytes()))
        file.write(bytes(8))
    assert not tensor.data[0, :8].any()
    assert values[:2].all()
    values[:] = 0  # an array of its own can be written


def test_dropped_pages_leave_memory_and_come_back() -> None:
    def resident_bytes() -> int:
        status = Path("/proc/self/status").read_text()
        return 1024 * int(status.partition("RssFile:")[2].split()[0])

    model = read_gguf(embedded())
    model.drop_pages()  # the digest has read all of it
    before = resident_bytes()
    sums = [int(tensor.data.sum()) for tensor in model.tensors.values()]
    size = sum(tensor.data.nbytes for tensor in model.tensors.values())
    assert resident_bytes() - before > 0.9 * size
    model.drop_pages()
    assert resident_bytes() - before < 0.1 * size
    assert sums == [int(tensor.data.sum()) for tensor in model.tensors.values()]


def test_the_fingerprint_is_of_the_whole_file(tmp_path: Path) -> None:
    path = tiny(tmp_path)
    whole = path.read_bytes()
    assert read_gguf(path).fingerprint == hashlib.sha256(whole).hexdigest()[:16]
    other = tmp_path / "other.gguf"
    other.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert read_gguf(other).fingerprint != read_gguf(path).fingerprint


def test_the_features_of_a_head_are_what_the_file_says_first(tmp_path: Path) -> None:
    def head_dim(**metadata: Any) -> int:
        return int(read_gguf(tiny(tmp_path, **metadata)).config.head_dim)

    assert head_dim(attention__key_length=16, rope__dimension_count=None) == 16
    assert head_dim(attention__key_length=16, rope__dimension_count=16, attention__value_length=16) == 16
    assert head_dim(attention__key_length=None, rope__dimension_count=32) == 32
    assert head_dim(attention__key_length=None, rope__dimension_count=None) == HIDDEN // HEADS


def test_rotary_frequencies_are_divided_by_the_files_factors(tmp_path: Path) -> None:
    half = HEAD_DIM // 2
    factors = np.linspace(1, 32, half, dtype=np.float32)
    blocks = random_blocks("llama", F32) | {"rope_freqs.weight": (factors.view(np.uint8), F32)}
    path = write_gguf(tmp_path / "tiny.gguf", "llama", blocks)
    expected = 20_000.0 ** -(torch.arange(half) / half) / torch.from_numpy(factors)
    torch.testing.assert_close(frequencies(path), (expected, 1.0))
    assert "rope_freqs.weight" not in read_gguf(path).tensors


def test_scaled_rotary_frequencies_are_scaled(tmp_path: Path) -> None:
    half = HEAD_DIM // 2
    plain = 20_000.0 ** -(torch.arange(half) / half)
    linear = tiny(tmp_path, rope__scaling__type="linear", rope__scaling__factor=4.0)
    torch.testing.assert_close(frequencies(linear), (plain / 4, 1.0))
    yarn = tiny(
        tmp_path, rope__scaling__type="yarn", rope__scaling__factor=4.0, rope__scaling__original_context_length=128
    )
    found, factor = frequencies(yarn)
    torch.testing.assert_close(found[[0, -1]], torch.stack((plain[0], plain[-1] / 4)))
    assert factor == pytest.approx(1 + 0.1 * np.log(4))


def cut(path: Path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


def changed(path: Path, old: bytes, new: bytes) -> None:
    assert old in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(old, new))


ODD_ROWS = np.zeros((252, 4 * HIDDEN), np.uint8), F32
Q3_K = np.zeros((VOCAB, 110), np.uint8), GGMLQuantizationType.Q3_K
FAULTS: dict[str, Any] = {
    "not a GGUF file": (lambda path: path.write_bytes(b"PK" + bytes(100)), "it is not a GGUF file"),
    "empty": (lambda path: cut(path, 0), "it is empty"),
    "gone": (lambda path: path.unlink(), "No such file"),
    "old": (lambda path: changed(path, b"GGUF\x03", b"GGUF\x01"), "its GGUF version is 1; supported: 2, 3"),
    "cut in the header": (lambda path: cut(path, 700), "its header is corrupt or truncated"),
    "cut in the last tensor": (lambda path: cut(path, path.stat().st_size - 1), "the file is truncated in tensor"),
    "unknown architecture": (lambda path: tiny_named(path, "gemma4"), "'gemma4' is not supported; supported: llama,"),
    "unsupported type": (
        lambda path: write_gguf(path, "llama", random_blocks("llama", F32) | {"token_embd.weight": Q3_K}),
        "tensor 'token_embd.weight' has type Q3_K, which is not supported; supported: F32, F16, BF16, Q4_0",
    ),
    "unknown tensor": (
        lambda path: write_gguf(path, "llama", random_blocks("llama", F32) | {"blk.0.attn_q.scale": Q3_K}),
        "its tensor 'blk.0.attn_q.scale' is not part of a supported llama model",
    ),
    "not whole heads": (
        lambda path: write_gguf(path, "llama", random_blocks("llama", F32) | {"blk.0.attn_q.weight": ODD_ROWS}),
        "tensor 'blk.0.attn_q.weight' has shape (252, 256), which is not 4 heads",
    ),
    "too many layers": (lambda path: tiny(path.parent, block_count=2**31), "tensors for 2147483648 layers"),
    "no key": (lambda path: tiny(path.parent, block_count=None), "its metadata has no llama.block_count"),
    "a text for a number": (lambda path: tiny(path.parent, block_count="two"), "its metadata is not a config"),
    "a part": (lambda path: tiny(path.parent, split__count=3), "it is one of 3 parts of a model"),
    "scaled otherwise": (
        lambda path: tiny(path.parent, rope__scaling__type="longrope"), "its rope.scaling.type 'longrope' is not"
    ),
    "no tokenizer": (
        lambda path: tiny(path.parent, add_tokenizer=lambda writer: None, vocab_size=VOCAB),
        "its tokenizer.ggml.model None is not supported; supported: gpt2, llama",
    ),
}  # fmt: skip


def tiny_named(path: Path, architecture: str) -> None:
    write_gguf(path, architecture, random_blocks("llama", F32))


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_names_the_file_and_the_reason(tmp_path: Path, fault: str) -> None:
    break_it, reason = FAULTS[fault]
    path = tiny(tmp_path)
    break_it(path)
    with pytest.raises(ConfigError) as raised:
        read_gguf(path)
    assert str(path) in str(raised.value)
    assert reason in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_damaged_header_is_a_config_error_or_read(tmp_path: Path) -> None:
    whole = bytearray(tiny(tmp_path).read_bytes())
    end, path = whole.index(b"token_embd.weight") + 40, tmp_path / "damaged.gguf"
    generator, refused = np.random.default_rng(5), 0
    for _ in range(150):
        damaged = whole.copy()
        damaged[generator.integers(4, end)] = generator.integers(256)
        path.write_bytes(damaged[: generator.choice([len(whole), generator.integers(4, end)])])
        try:
            read_gguf(path)
        except ConfigError:
            refused += 1
    assert refused > 75
