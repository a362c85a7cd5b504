"""Tokenizers of GGUF files: the ids that the models' own tokenizers give, never transformers' reading of the same file."""

import gzip
import json
import mmap
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gguf import GGUFWriter
from tokenizers import Tokenizer

from coordinator.tokenizer import Tokenizer as CoordinatorTokenizer
from paceline.engine.models.gguf.header import Header, read_header
from paceline.engine.models.gguf.pre_tokenizers import SPLITTINGS
from paceline.engine.models.gguf.tokenizer import tokenizer_files
from paceline.engine.models.weights import TOKENIZER_FILES, find_gguf
from paceline.errors import ConfigError
from tests.engine.models.gguf_files import (
    VOCAB,
    add_byte_level_tokenizer,
    add_sentencepiece_tokenizer,
    sentencepiece_vocabulary,
    tiny,
)
from tests.slices import slice_of

pytestmark = pytest.mark.slow

DATA = json.loads(gzip.decompress((Path(__file__).parents[2] / "data" / "tokenizer_ids.json.gz").read_bytes()))
EXPECTED = {name: kind["ids"] for kind in DATA["kinds"] for name in kind["pre"]}
NAMES_OF_ONE_SPLITTING = [
    [name for name in sorted(SPLITTINGS) if SPLITTINGS[name] == each] for each in dict.fromkeys(SPLITTINGS.values())
]
# Of the models that Paceline runs.
IN_SLICE = {"default", "llama-bpe", "qwen2", "smollm", "gpt-2", "tekken"}
SENTENCEPIECE = {"spm": True, "spm-no-prefix": False}


def header_of(path: Path) -> Header:
    with path.open("rb") as opened:
        return read_header(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))


@pytest.fixture(scope="module")
def embedded() -> dict[str, Any]:
    """The metadata of SmolLM2's file."""
    path = find_gguf("smollm2-135m")
    assert path is not None
    return header_of(path).metadata


def tokenizer_of(metadata: dict[str, Any]) -> Tokenizer:
    return Tokenizer.from_str(tokenizer_files(Header(metadata, ()))["tokenizer.json"].decode())


def test_every_name_has_ids_to_compare_with() -> None:
    assert EXPECTED.keys() == SPLITTINGS.keys() | SENTENCEPIECE.keys()
    assert len(DATA["texts"]) == 500


@pytest.mark.parametrize("names", slice_of(NAMES_OF_ONE_SPLITTING, IN_SLICE.intersection), ids=lambda names: names[0])
def test_a_byte_level_vocabulary_gives_the_ids_of_its_own_tokenizer(embedded: dict[str, Any], names: list[str]) -> None:
    tokenizer = tokenizer_of(embedded | {"tokenizer.ggml.pre": names[0]})
    assert_ids(tokenizer, *(EXPECTED[name] for name in names))


@pytest.mark.parametrize("name", sorted(SENTENCEPIECE))
def test_a_sentencepiece_vocabulary_gives_the_ids_of_its_own_tokenizer(embedded: dict[str, Any], name: str) -> None:
    tokens, types, scores = sentencepiece_vocabulary(
        embedded["tokenizer.ggml.tokens"], embedded["tokenizer.ggml.token_type"]
    )
    given = {"model": "llama", "tokens": tokens, "token_type": types, "scores": scores, "unknown_token_id": 0}
    given["add_space_prefix"] = SENTENCEPIECE[name]
    tokenizer = tokenizer_of({f"tokenizer.ggml.{key}": value for key, value in given.items()})
    assert_ids(tokenizer, EXPECTED[name])
    for text in ("two  words", "\n3 lines\n\n", "🙂 bytes"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text


def assert_ids(tokenizer: Tokenizer, *expected: list[list[int]]) -> None:
    found = [tokenizer.encode(text, add_special_tokens=False).ids for text in DATA["texts"]]
    for ids in expected:
        assert [each for each in zip(DATA["texts"], found, ids, strict=True) if each[1] != each[2]] == []


def test_the_embedded_file_splits_digits_from_spaces(embedded: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(embedded)
    assert tokenizer.encode("\n\n1. first").ids == [1116, 33, 30, 808]
    assert tokenizer.encode("x =  5").ids == [104, 446, 256, 37]


def test_a_file_without_a_split_is_read_as_by_default(
    embedded: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    metadata = {key: value for key, value in embedded.items() if key != "tokenizer.ggml.pre"}
    assert_ids(tokenizer_of(metadata), EXPECTED["default"])
    assert "no tokenizer.ggml.pre" in caplog.text


@pytest.mark.parametrize(("key", "value", "said"), [
    ("pre", "nonsense", "its tokenizer.ggml.pre 'nonsense' is not supported; supported: a.x-4.0, codeshell"),
    ("model", "t5", "its tokenizer.ggml.model 't5' is not supported; supported: gpt2, llama"),
    ("eos_token_id", 49152, "its tokenizer.ggml.eos_token_id is 49152; it must be from 0 to 49151"),
])  # fmt: skip
def test_what_is_unknown_is_refused_by_name(embedded: dict[str, Any], key: str, value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        tokenizer_of(embedded | {f"tokenizer.ggml.{key}": value})
    assert str(error.value).startswith(said)


@pytest.mark.parametrize(("pre", "says", "begins"), [
    ("llama-bpe", None, True), ("llama-bpe", False, False), ("qwen2", None, False), ("qwen2", True, True),
])  # fmt: skip
def test_a_prompt_begins_with_bos_as_the_file_or_its_kind_says(
    embedded: dict[str, Any], pre: str, says: bool | None, begins: bool
) -> None:
    metadata = {key: value for key, value in embedded.items() if key != "tokenizer.ggml.add_bos_token"}
    metadata |= {"tokenizer.ggml.pre": pre} | ({} if says is None else {"tokenizer.ggml.add_bos_token": says})
    tokenizer = tokenizer_of(metadata)
    assert (tokenizer.encode("hi").ids[0] == embedded["tokenizer.ggml.bos_token_id"]) is begins
    assert tokenizer.encode("hi", add_special_tokens=False).ids == tokenizer.encode("hi").ids[begins:]


def test_special_tokens_in_any_script_are_whole(tmp_path: Path) -> None:
    def add_tokenizer(writer: GGUFWriter) -> None:
        add_byte_level_tokenizer(writer)
        tokens = [*"abcdefghijklmnopqrstuvwxyz", "ab", "abc", "Ġ", "Ġa", "<｜end▁of▁turn｜>", "<think>"]
        writer.add_token_list([*tokens, *(f"<|{i}|>" for i in range(VOCAB - len(tokens)))])

    tokenizer = tokenizer_of(header_of(tiny(tmp_path, add_tokenizer=add_tokenizer)).metadata)
    assert tokenizer.encode("abc<｜end▁of▁turn｜><think>ab").ids == [27, 30, 31, 26]
    assert tokenizer.get_vocab_size() == VOCAB
    assert tokenizer.decode([27, 30, 31, 26], skip_special_tokens=False) == "abc<｜end▁of▁turn｜><think>ab"


@pytest.mark.parametrize("add_tokenizer", [add_byte_level_tokenizer, add_sentencepiece_tokenizer])
def test_named_tokens_and_the_chat_template_survive(tmp_path: Path, add_tokenizer: Any) -> None:
    header = header_of(tiny(tmp_path, add_tokenizer=add_tokenizer))
    files = tokenizer_files(header)
    settings, tokens = json.loads(files["tokenizer_config.json"]), header.metadata["tokenizer.ggml.tokens"]
    for name in ("bos", "eos"):
        assert settings[f"{name}_token"] == tokens[header.metadata[f"tokenizer.ggml.{name}_token_id"]]
    if "tokenizer.chat_template" in header.metadata:
        assert b"messages[0]" in files["chat_template.jinja"]
    assert files.keys() <= set(TOKENIZER_FILES)


def test_named_templates_survive(tmp_path: Path) -> None:
    header = header_of(tiny(tmp_path))
    header.metadata.update({"tokenizer.chat_templates": ["tool_use"], "tokenizer.chat_template.tool_use": "with tools"})
    tokenizer = CoordinatorTokenizer(tokenizer_files(header))
    tools = [{"type": "function", "function": {"name": "add", "parameters": {}}}]
    chat = [{"role": "user", "content": "hi"}]
    assert [tokenizer.render_chat(chat, {})[-2:], tokenizer.render_chat(chat, {"tools": tools})] == ["hi", "with tools"]


def test_a_named_template_that_is_no_text_is_refused(tmp_path: Path) -> None:
    header = header_of(tiny(tmp_path))
    with pytest.raises(ConfigError, match=r"its tokenizer\.chat_template\.tool_use is 3; it must be a text"):
        replace(header, metadata=header.metadata | {"tokenizer.chat_template.tool_use": 3})


# Phi-3's own tokens, with what its tokenizer.json says of each: whether it takes the white space after it.
PHI3_TOKENS = {
    "<unk>": False, "<s>": False, "</s>": True, "<|endoftext|>": False, "<|user|>": True, "<|assistant|>": True,
    "<|end|>": True, "<think>": True,
}  # fmt: skip
PHI3_TEXTS = [
    "<s><|user|>\nab<|end|>\n<|assistant|>\n", "<|user|> \n a b\n<|end|>  c</s> <|endoftext|>\na<s> b<think>\nc", "a\n<|end|>",
]  # fmt: skip
# general.name, architecture, and whether the file is Phi-3's.
PHI3_NAMES = [
    ("Phi3", "phi3", True), ("Phi-3.5-mini-instruct", "llama", True), ("my phi-3 mini", "llama", True),
    ("Phi 3 Mini 4k Instruct", "phi3", True), ("NuExtract", "phi3", True), (None, "phi3", True),
    ("Llama 2", "llama", False), (None, "llama", False), ("Phi 4", "llama", False),
]  # fmt: skip


def phi3_metadata(name: str | None, architecture: str) -> dict[str, Any]:
    words = ["▁", "\n", "a", "b", "c", "▁a", "▁b"]
    tokens = [*PHI3_TOKENS, *words]
    given = {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.token_type": [2, *[3] * 6, 4, *[1] * len(words)],
        "tokenizer.ggml.scores": [-float(at) for at in range(len(tokens))], "general.architecture": architecture,
    }  # fmt: skip
    return given | ({} if name is None else {"general.name": name})


@pytest.mark.parametrize(("name", "architecture", "is_phi3"), PHI3_NAMES)
def test_phi3s_control_tokens_take_the_white_space_after_them(
    name: str | None, architecture: str, is_phi3: bool
) -> None:
    tokenizer = tokenizer_of(phi3_metadata(name, architecture))
    vocabulary = tokenizer.get_vocab()
    for text in PHI3_TEXTS:
        # By hand: the tokens' white space is cut from the text, and what is left between them is plain.
        stripping = "|".join(re.escape(token) for token, strips in PHI3_TOKENS.items() if strips)
        cut = re.sub(rf"({stripping})\s+", r"\1", text) if is_phi3 else text
        pieces = re.split(f"({'|'.join(map(re.escape, PHI3_TOKENS))})", cut)
        plain = tokenizer_of(phi3_metadata("plain", "llama"))
        expected = [
            token
            for piece in pieces
            for token in (
                [vocabulary[piece]] if piece in PHI3_TOKENS else plain.encode(piece, add_special_tokens=False).ids
            )
        ]
        assert tokenizer.encode(text, add_special_tokens=False).ids == expected


def test_the_names_of_phi3_are_read_from_a_file(tmp_path: Path) -> None:
    def add_tokenizer(writer: GGUFWriter) -> None:
        writer.add_name("Phi-3-mini")
        add_byte_level_tokenizer(writer)

    header = header_of(tiny(tmp_path, add_tokenizer=add_tokenizer))
    tokenizer = Tokenizer.from_str(tokenizer_files(header)["tokenizer.json"].decode())
    assert tokenizer.encode("ab<|end|> \n abc").ids == [26, 30, 27]
