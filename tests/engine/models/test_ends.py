"""The tokens that end a text: the union of all places that may name one."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.engine.models.weights import load_model
from paceline.errors import ConfigError
from tests.engine.models.gguf_files import VOCAB, add_byte_level_tokenizer, tiny
from tests.model_folder import change_json, write_model

# Files of a folder with what they say, and the ends. Token 7 is "t7", and no end of a text by its name.
FOLDERS: dict[str, tuple[dict[str, dict[str, Any]], set[int]]] = {
    "an id of config.json": ({"config.json": {"eos_token_id": 5}}, {5}),
    "ids of config.json": ({"config.json": {"eos_token_id": [5, 6]}}, {5, 6}),
    "an id of generation_config.json": ({"generation_config.json": {"eos_token_id": 9}}, {9}),
    "ids of generation_config.json": (
        {"config.json": {"eos_token_id": 5}, "generation_config.json": {"eos_token_id": [9, 5]}}, {5, 9},
    ),
    "the tokenizer's": ({"tokenizer_config.json": {"eos_token": "t7"}}, {7}),
    "the tokenizer's, as an object": ({"tokenizer_config.json": {"eos_token": {"content": "t7"}}}, {7}),
    "the tokenizer's, in its older file": ({"special_tokens_map.json": {"eos_token": "t7"}}, {7}),
    "an id of a multimodal checkpoint's text model": ({"config.json": {"text_config": {"eos_token_id": 9}}}, {9}),
    "none": ({"tokenizer_config.json": {"eos_token": None}}, set()),
    "an unknown token": ({"tokenizer_config.json": {"eos_token": "<unheard of>"}}, set()),
}  # fmt: skip
# Names of control tokens that end a text, and others that do not.
NAMED = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end|>", "</s>", "<｜end▁of▁sentence｜>", "<|fim_pad|>")
OTHERS = ("<|im_start|>", "<|fim_prefix|>", "<pad>")
# Added tokens, and which of them are ends: in these, `<|end|>` ends a message and `</s>` is HTML.
TOGETHER = {
    "gpt-oss": (("<|start|>", "<|end|>", "<|message|>", "<|return|>", "<|call|>"), {"<|return|>", "<|call|>"}),
    "Solar": (("<|end|>", "<|flush|>", "<|calls|>"), {"<|flush|>", "<|calls|>"}),
    "Phi-3": (("<|end|>", "</s>", "<|endoftext|>"), {"<|end|>", "</s>", "<|endoftext|>"}),
    "Gemma": (("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "</s>"), {"<eos>", "<end_of_turn>"}),
    "Gemma without its turns": (("<eos>", "</s>"), {"<eos>"}),
    "Gemma 4": (("<turn|>", "<|tool_response>", "</s>"), {"<turn|>", "<|tool_response>"}),
    "Llama 2": (("<s>", "</s>"), {"</s>"}),
}
# Keys tokenizer.ggml.NAME_token_id of a file, its control token 30, and the ends.
FILES: dict[str, tuple[dict[str, int], str, set[int]]] = {
    "eos": ({"eos": 5}, "<|x|>", {5}),
    "eot": ({"eos": 5, "eot": 6}, "<|x|>", {5, 6}),
    "eom": ({"eos": 5, "eom": 7}, "<|x|>", {5, 7}),
    "without eos": ({"eot": 6}, "<|x|>", {6}),
    "of fill-in-the-middle": (
        {"fim_pre": 1, "fim_suf": 2, "fim_mid": 3, "fim_pad": 4, "fim_rep": 8, "fim_sep": 9}, "<|x|>", {4, 8, 9},
    ),
    "by its name": ({"eos": 5}, "<|im_end|>", {5, 30}),
    "by its name alone": ({}, "<|im_end|>", {30}),
    "none": ({}, "<|x|>", set()),
}  # fmt: skip


def ends_of(model: Path, in_place: bool = False) -> set[int]:
    ends = load_model(str(model), torch.float32, in_place=in_place).config.eos_token_ids
    assert len(ends) == len(set(ends))
    return set(ends)


def folder_with(folder: Path, files: dict[str, dict[str, Any]]) -> Path:
    write_model(folder, eos_token_id=None)
    for name, content in files.items():
        change_json(folder / name, **content)
    return folder


@pytest.mark.parametrize("place", FOLDERS)
def test_a_folder_ends_a_text_where_any_of_its_files_says_so(tmp_path: Path, place: str) -> None:
    files, ends = FOLDERS[place]
    assert ends_of(folder_with(tmp_path, files)) == ends


def test_added_tokens_with_the_name_of_an_end_are_ends(tmp_path: Path) -> None:
    names = (*NAMED, *OTHERS)
    added = [{"id": 20 + number, "content": name, "special": name != "</s>"} for number, name in enumerate(names)]
    # What the model has no vector for it can't write.
    added.append({"id": 512, "content": "<|eom_id|>", "special": True})
    assert ends_of(folder_with(tmp_path, {"tokenizer.json": {"added_tokens": added}})) == set(
        range(20, 20 + len(NAMED))
    )


@pytest.mark.parametrize("model", TOGETHER)
@pytest.mark.parametrize("is_named", [False, True], ids=["no end is named", "ends are named"])
def test_a_name_that_means_something_else_beside_others_is_no_end(tmp_path: Path, model: str, is_named: bool) -> None:
    names, ends = TOGETHER[model]
    added = [{"id": 20 + at, "content": name, "special": name != "</s>"} for at, name in enumerate(names)]
    ids = {20 + names.index(name) for name in ends}
    named = {"generation_config.json": {"eos_token_id": sorted(ids)}} if is_named else {}
    assert ends_of(folder_with(tmp_path, {"tokenizer.json": {"added_tokens": added}} | named)) == ids


@pytest.mark.parametrize("name", ["<|end|>", "</s>"])
def test_what_files_name_is_an_end_whatever_stands_beside_it(tmp_path: Path, name: str) -> None:
    names = (name, "<|return|>", "<|call|>", "<eos>")
    added = [{"id": 20 + at, "content": each, "special": True} for at, each in enumerate(names)]
    files = {"tokenizer.json": {"added_tokens": added}, "tokenizer_config.json": {"eos_token": name}}
    assert ends_of(folder_with(tmp_path, files)) == {20, 21, 22, 23}


@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "converted"])
def test_gemmas_html_tag_in_a_gguf_file_is_no_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
    tokenizer = partial(add_byte_level_tokenizer, control="<end_of_turn>", own="</s>", ids={"eos": 5})
    assert ends_of(tiny(tmp_path, add_tokenizer=tokenizer), in_place) == {5, 30}


@pytest.mark.parametrize("place", FILES)
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "converted"])
def test_a_gguf_file_ends_a_text_where_any_of_its_keys_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, in_place: bool
) -> None:
    monkeypatch.setenv("PACELINE_CACHE_DIR", str(tmp_path / "cache"))
    ids, control, ends = FILES[place]
    path = tiny(tmp_path, add_tokenizer=partial(add_byte_level_tokenizer, control=control, ids=ids))
    assert ends_of(path, in_place) == ends


@pytest.mark.parametrize(("file", "value"), [
    ("config.json", 512), ("config.json", [0, -1]),
    ("generation_config.json", 512), ("generation_config.json", [0, -1]), ("generation_config.json", "t7"),
])  # fmt: skip
def test_an_end_outside_the_vocabulary_is_refused_with_its_file(tmp_path: Path, file: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        ends_of(folder_with(tmp_path, {file: {"eos_token_id": value}}))
    wrong = value[1] if isinstance(value, list) else value
    assert f"its {file} has the eos_token_id {wrong!r}; it must be in [0, 512)" in str(caught.value)


@pytest.mark.parametrize("name", ["eos", "eot", "fim_sep", "bos", "padding", "unknown"])
def test_a_token_id_outside_the_vocabulary_is_refused_with_its_key(tmp_path: Path, name: str) -> None:
    path = tiny(tmp_path, add_tokenizer=partial(add_byte_level_tokenizer, ids={name: VOCAB}))
    with pytest.raises(ConfigError) as caught:
        ends_of(path, in_place=True)
    assert f"its tokenizer.ggml.{name}_token_id is {VOCAB}; it must be in [0, {VOCAB})" in str(caught.value)


def test_a_generation_config_that_is_no_json_object_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "generation_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"its generation_config\.json is not a JSON object"):
        ends_of(tmp_path)
