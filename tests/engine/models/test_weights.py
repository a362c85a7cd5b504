"""What a folder's tensors may be: floats, and 8 bits with a scale for each output feature. All else is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from coordinator.tokenizer import Tokenizer
from paceline.engine.models.quantization import quantize
from paceline.engine.models.shapes import MASK_VECTORS
from paceline.engine.models.weights import NUM_MASKS, load_model
from paceline.errors import ConfigError
from tests.model_folder import change_config, change_json, write_model

WEIGHT = "model.layers.0.self_attn.k_proj.weight"
OUT, IN = 32, 64
FP8 = torch.float8_e4m3fn


def folder_with(folder: Path, changes: dict[str, torch.Tensor]) -> Path:
    write_model(folder)
    file = folder / "model.safetensors"
    save_file(load_file(file) | changes, file)
    return folder


def codes(dtype: torch.dtype) -> torch.Tensor:
    return (torch.randn(OUT, IN, generator=torch.Generator().manual_seed(3)) * 8).to(dtype)


@pytest.mark.parametrize("dtype", [torch.int8, FP8])
def test_eight_bits_are_multiplied_by_the_scales_of_their_features(tmp_path: Path, dtype: torch.dtype) -> None:
    weight, scale = codes(dtype), torch.linspace(0.1, 2, OUT)
    loaded = load_model(str(folder_with(tmp_path, {WEIGHT: weight, f"{WEIGHT}_scale": scale})), torch.float32)
    assert torch.equal(loaded.tensors[WEIGHT], weight.float() * scale[:, None])
    assert f"{WEIGHT}_scale" not in loaded.tensors


def test_what_we_quantize_is_read_back(tmp_path: Path) -> None:
    plain = torch.randn(OUT, IN)
    weight, scale = quantize(plain)
    loaded = load_model(str(folder_with(tmp_path, {WEIGHT: weight, f"{WEIGHT}_scale": scale})), torch.float32)
    torch.testing.assert_close(loaded.tensors[WEIGHT], plain, atol=float(scale.max()) / 2, rtol=1e-5)


OF_8_BITS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    # As Qwen3-*-FP8 is published.
    "scales of blocks": (
        {WEIGHT: codes(FP8), f"{WEIGHT}_scale_inv": torch.ones(1, 1)},
        f"tensor '{WEIGHT}' has type float8_e4m3fn and no '{WEIGHT}_scale'",
    ),
    # As compressed-tensors writes it.
    "scales in a column": (
        {WEIGHT: codes(FP8), f"{WEIGHT}_scale": torch.ones(OUT, 1)},
        f"tensor '{WEIGHT}_scale' has shape (32, 1); it must be (32,)",
    ),
    "one scale": ({WEIGHT: codes(torch.int8), f"{WEIGHT}_scale": torch.ones(())}, "has shape (); it must be (32,)"),
    "no scales": ({WEIGHT: codes(torch.int8)}, "has type int8 and no"),
    "four bits in a byte": ({WEIGHT: torch.ones(OUT * IN // 2, 1, dtype=torch.uint8)}, "has type uint8 and no"),
}


@pytest.mark.parametrize("name", OF_8_BITS)
def test_eight_bits_without_a_scale_for_each_feature_are_refused(tmp_path: Path, name: str) -> None:
    changes, reason = OF_8_BITS[name]
    folder_with(tmp_path, changes)
    fp8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    change_config(tmp_path, quantization_config=fp8)
    with pytest.raises(ConfigError) as caught:
        load_model(str(tmp_path), torch.float32)
    assert str(tmp_path) in str(caught.value)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mistrals_own_copy_of_its_tensors_is_not_read(tmp_path: Path) -> None:
    write_model(tmp_path)
    save_file({"layers.0.attention.wq.weight": torch.ones(4, 4)}, tmp_path / "consolidated.safetensors")
    assert "layers.0.attention.wq.weight" not in load_model(str(tmp_path), torch.float32).tensors


def test_one_mask_token_stands_for_all_masks(tmp_path: Path) -> None:
    write_model(tmp_path)
    change_config(tmp_path, pard_token=5)
    loaded = load_model(str(tmp_path), torch.float32)
    embedding = loaded.tensors["model.embed_tokens.weight"]
    assert torch.equal(loaded.tensors[MASK_VECTORS], embedding[5].repeat(NUM_MASKS, 1))


@pytest.mark.parametrize("token", [-1, 10**6, "<mask>", None])
def test_a_mask_token_that_is_no_token_is_refused(tmp_path: Path, token: Any) -> None:
    write_model(tmp_path)
    change_config(tmp_path, pard_token=token)
    with pytest.raises(ConfigError, match=r"pard_token is .*; it must be a token id in"):
        load_model(str(tmp_path), torch.float32)


@pytest.mark.parametrize("num_drafts", [1, 2, 3])
def test_drafts_that_name_each_other_as_target_are_refused(tmp_path: Path, num_drafts: int) -> None:
    folders = [tmp_path / f"draft-{at}" for at in range(num_drafts)]
    for folder, target in zip(folders, [*folders[1:], folders[0]], strict=True):
        write_model(folder, paceline_target=f"{target}/../{target.name}")
    with pytest.raises(
        ConfigError, match=r"its paceline_target is .*draft-.*; it must be a model that needs no such draft"
    ):
        load_model(str(folders[0]), torch.float32)


def test_a_draft_of_a_draft_is_loaded(tmp_path: Path) -> None:
    write_model(tmp_path / "draft", paceline_target=str(tmp_path / "its target"))
    write_model(tmp_path / "its target", paceline_target=str(tmp_path / "target"))
    write_model(tmp_path / "target")
    assert load_model(str(tmp_path / "draft"), torch.float32).config.vocab_size == 512


@pytest.mark.parametrize("target", [7, ["a"], True])
def test_a_target_that_is_no_name_is_refused(tmp_path: Path, target: Any) -> None:
    write_model(tmp_path, paceline_target=target)
    with pytest.raises(ConfigError, match=r"its paceline_target is .*; it must be a model"):
        load_model(str(tmp_path), torch.float32)


@pytest.mark.parametrize(("files", "expected"), [
    ({"chat_template.json": {"chat_template": "old {{ messages[0].content }}"}}, "old hi"),
    ({
        "chat_template.json": {"chat_template": "old"},
        "tokenizer_config.json": {"chat_template": "own {{ messages[0].content }}"},
    }, "own hi"),
])  # fmt: skip
def test_a_processors_template_is_one(tmp_path: Path, files: dict[str, Any], expected: str) -> None:
    write_model(tmp_path)
    for file, content in ({"tokenizer_config.json": {"chat_template": None}} | files).items():
        change_json(tmp_path / file, **content)
    tokenizer = Tokenizer(load_model(str(tmp_path), torch.float32).tokenizer_files)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}], {}) == expected
    (tmp_path / "chat_template.jinja").write_text("new")
    tokenizer = Tokenizer(load_model(str(tmp_path), torch.float32).tokenizer_files)
    assert tokenizer.render_chat([{"role": "user", "content": "hi"}], {}) == "new"


def said_by(folder: Path, tools: bool) -> str:
    tokenizer = Tokenizer(load_model(str(folder), torch.float32).tokenizer_files)
    function = {"name": "add", "parameters": {}}
    options = {"tools": [{"type": "function", "function": function}]} if tools else {}
    return tokenizer.render_chat([{"role": "user", "content": "hi"}], options)


NAMED = [{"name": "default", "template": "default"}, {"name": "tool_use", "template": "with tools"}]


@pytest.mark.parametrize(("config", "files", "expected"), [
    (NAMED, {}, ("default", "with tools")),
    ("default", {"additional_chat_templates/tool_use.jinja": "with tools"}, ("default", "with tools")),
    (None, {"chat_template.jinja": "default", "additional_chat_templates/tool_use.jinja": "with tools"}, ("default", "with tools")),
    (NAMED, {"additional_chat_templates/tool_use.jinja": "newer"}, ("default", "newer")),
    (None, {"chat_template.json": json.dumps({"chat_template": NAMED})}, ("default", "with tools")),
    (None, {"chat_template.json": json.dumps({"chat_template": {"default": "a", "rag": "b"}})}, ("a", "a")),
    # Without a default, the first is it.
    (NAMED[1:], {}, ("with tools", "with tools")),
])  # fmt: skip
def test_the_template_for_tools_is_rendered_with_tools(
    tmp_path: Path, config: Any, files: dict[str, str], expected: tuple[str, str]
) -> None:
    write_model(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", chat_template=config)
    (tmp_path / "additional_chat_templates").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert (said_by(tmp_path, tools=False), said_by(tmp_path, tools=True)) == expected


def test_a_processors_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", chat_template=None)
    change_json(tmp_path / "chat_template.json", chat_template=3)
    with pytest.raises(ConfigError, match=r"its chat_template\.json has the chat_template 3; it must be a text"):
        load_model(str(tmp_path), torch.float32)
