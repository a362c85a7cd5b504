"""GGUF files: kept under their content, in the numbers the file holds."""

import os
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import Tokenizer

from paceline.engine.models.dummy import dummy_config, dummy_tokenizer_files, make_dummy
from paceline.engine.models.gguf.conversion import converted
from paceline.engine.models.rope import rope_tables
from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.disks import FULL, READ_ONLY, disk, make_read_only
from tests.engine.models.gguf_files import tiny

NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def write_gguf(path: Path, norm: float = 1.0, rope_factors: torch.Tensor | None = None) -> None:
    """A tiny model with float32 tensors; `norm`: every value of its last norm; `rope_factors`: [head_dim / 2]."""
    config, tensors = dummy_config("tiny"), make_dummy("tiny", torch.float32)[1]
    tensors["model.norm.weight"] = torch.full_like(tensors["model.norm.weight"], norm)
    vocabulary = Tokenizer.from_str(dummy_tokenizer_files(config.vocab_size)["tokenizer.json"].decode()).get_vocab()
    writer = GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(vocabulary, key=vocabulary.__getitem__))
    writer.add_token_scores([0.0] * config.vocab_size)
    writer.add_token_types([1] * config.vocab_size)
    writer.add_token_merges([])
    for name, tensor in tensors.items():
        for ours, theirs in NAMES.items():
            name = name.replace(f".{ours}.", f".{theirs}.")
        name = name.replace("model.layers.", "blk.").replace("model.norm", "output_norm")
        name = name.replace("model.embed_tokens", "token_embd").replace("lm_head", "output")
        writer.add_tensor(name, tensor.numpy(), raw_dtype=GGMLQuantizationType.F32)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))


def norm_of(path: Path, dtype: torch.dtype) -> torch.Tensor:
    return load_model(str(path), dtype).tensors["model.norm.weight"]


def test_two_files_of_one_name_and_one_size_are_two_models(tmp_path: Path) -> None:
    for folder, norm in (("one", 1.0), ("other", 2.0)):
        (tmp_path / folder).mkdir()
        write_gguf(tmp_path / folder / "model-Q4.gguf", norm)
    one, other = tmp_path / "one" / "model-Q4.gguf", tmp_path / "other" / "model-Q4.gguf"
    assert one.stat().st_size == other.stat().st_size
    assert norm_of(one, torch.bfloat16)[0] == 1.0
    assert norm_of(other, torch.bfloat16)[0] == 2.0


def test_float32_keeps_what_the_file_says(tmp_path: Path) -> None:
    path, norm = tmp_path / "model.gguf", float(np.float32(1.0009765625))
    assert float(torch.tensor(norm).bfloat16()) != norm
    write_gguf(path, norm)
    assert norm_of(path, torch.bfloat16)[0] == torch.tensor(norm).bfloat16()
    assert norm_of(path, torch.float32)[0] == norm, "also after a bfloat16 copy was made"


def test_rotary_frequencies_are_divided_by_the_files_factors(tmp_path: Path) -> None:
    half, position = dummy_config("tiny").head_dim // 2, 5
    factors = torch.linspace(1, 32, half)
    write_gguf(tmp_path / "model.gguf", rope_factors=factors)
    write_gguf(tmp_path / "plain.gguf")
    frequencies = 10_000.0 ** -(torch.arange(half) / half)
    for name, expected in (("model", frequencies / factors), ("plain", frequencies)):
        config = load_model(str(tmp_path / f"{name}.gguf"), torch.float32).config
        cos, sin = rope_tables(config, position + 1)
        torch.testing.assert_close(cos[position, :half], (position * expected).cos())
        torch.testing.assert_close(sin[position, half:], (position * expected).sin())


@pytest.mark.parametrize("metadata", [
    {"rope__scaling__factor": 4.0},
    {"rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__original_context_length": 128},
])  # fmt: skip
def test_both_ways_to_read_a_file_scale_alike(tmp_path: Path, metadata: dict[str, Any]) -> None:
    path = str(tiny(tmp_path, **metadata))
    for in_place, converted_one in zip(
        rope_tables(load_model(path, torch.bfloat16, in_place=True).config, 100),
        rope_tables(load_model(path, torch.float32).config, 100),
        strict=True,
    ):
        assert torch.equal(in_place, converted_one)


def test_both_ways_to_read_a_file_refuse_alike(tmp_path: Path) -> None:
    path = tiny(tmp_path, logit_scale=0.5)
    for in_place in (True, False):
        with pytest.raises(ConfigError, match=r"tiny\.gguf.* its llama\.logit_scale is 0\.5"):
            load_model(str(path), torch.float32, in_place=in_place)


def test_a_file_is_converted_once(tmp_path: Path) -> None:
    path, said = tmp_path / "model.gguf", []
    write_gguf(path, 1.0)
    folders = {converted(path, torch.bfloat16, said.append) for _ in range(2)}
    assert (len(folders), len(said)) == (1, 1)


@pytest.mark.parametrize(("options", "said"), [
    (FULL, "No space left on device"), (READ_ONLY, "Read-only file system"), (None, "Not a directory"),
])  # fmt: skip
def test_a_cache_that_can_not_be_written_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str | None, said: str
) -> None:
    path = tiny(tmp_path)
    with disk(tmp_path / "disk", options) if options else nullcontext(path) as folder:
        monkeypatch.setenv("PACELINE_CACHE_DIR", str(folder / "cache"))
        with pytest.raises(ConfigError) as error:
            load_model(str(path), torch.float32)
        assert not [*folder.glob("cache/**/*.safetensors")]
    assert f"can't be converted into {folder / 'cache'}: " in str(error.value)
    assert said in str(error.value)
    assert str(error.value).endswith("; set PACELINE_CACHE_DIR to another folder")


def test_a_user_without_a_home_is_told_of_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tiny(tmp_path)
    monkeypatch.delenv("PACELINE_CACHE_DIR")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    with pytest.raises(
        ConfigError, match="user id 2147483641 has no home folder; PACELINE_CACHE_DIR must name a folder"
    ):
        load_model(str(path), torch.float32)


def test_what_is_kept_is_read_from_a_disk_that_can_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny(tmp_path)
    kept = converted(path, torch.float32, print)
    with disk(tmp_path / "disk", "size=64m") as folder:
        shutil.copytree(kept, folder / kept.name)
        make_read_only(folder)
        monkeypatch.setenv("PACELINE_CACHE_DIR", str(folder))
        assert converted(path, torch.float32, print) == folder / kept.name


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"model '.*gone\.gguf' could not be read: .*No such file"):
        converted(tmp_path / "gone.gguf", torch.float32, print)
