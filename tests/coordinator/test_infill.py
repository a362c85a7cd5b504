"""Fill-in-the-middle prompts: special tokens that no text can spell, and what is left out if all is too long."""

import mmap
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coordinator.infill import InfillPrompts
from coordinator.tokenizer import Tokenizer
from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.engine.models.gguf.header import read_header
from paceline.engine.models.gguf.tokenizer import tokenizer_files as gguf_tokenizer_files
from paceline.engine.models.weights import load_model
from paceline.errors import InvalidArgument
from paceline.infill_prompt import Infill
from tests.fill_in import BOS, DEEPSEEK, EOS, FILE, GRANITE, MIDDLE, PREFIX, QWEN, REPOSITORY, SUFFIX, tokenizer_files

LONG = 100_000
QWEN_FILE = Path.home() / ".cache/paceline/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
FILES = (("a.py", "a = 1\n"), ("b.py", "b = é"))
# Names in parts and as a whole.
SPELLED = st.lists(st.sampled_from((*QWEN, EOS, "<|fim_", "prefix|>", "<|", "|>", " ", "\n", "a", "é"))).map("".join)


class Model:
    """A tokenizer with a token for each byte."""

    def __init__(self, names: tuple[str, ...] = QWEN, adds_bos: bool = False) -> None:
        self._tokenizer = Tokenizer(tokenizer_files(names, adds_bos))
        self.prompts = InfillPrompts(self._tokenizer)
        added = self._tokenizer.backend.get_added_tokens_decoder()
        self.ids = {str(token): token_id for token_id, token in added.items()}

    def marks(self, ids: list[int]) -> list[str]:
        names = {token_id: name for name, token_id in self.ids.items()}
        return [names[token] for token in ids if token in names]

    def written(self, infill: Infill, max_length: int = LONG) -> str:
        return self._tokenizer.decode(self.prompts.encode(infill, max_length), skip_special_tokens=False)


@pytest.fixture(scope="module")
def qwen() -> Model:
    return Model()


@pytest.mark.parametrize("names", [QWEN, GRANITE, DEEPSEEK], ids=["qwen", "granite", "deepseek"])
def test_the_middle_comes_last(names: tuple[str, ...]) -> None:
    model, (prefix, suffix, middle) = Model(names), names[:3]
    ids = model.prompts.encode(Infill("a é\n", "b\n", prompt="c "), LONG)
    assert model.marks(ids) == [prefix, suffix, middle]
    assert model.written(Infill("a é\n", "b\n", prompt="c ")) == f"{prefix}a é\nc {suffix}b\n{middle}"
    assert model.written(Infill("", "")) == prefix + suffix + middle


@pytest.mark.skipif(not QWEN_FILE.exists(), reason="Qwen2.5-Coder is not downloaded")
def test_ids_of_qwen() -> None:
    with QWEN_FILE.open("rb") as opened:
        header = read_header(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    tokenizer = Tokenizer(gguf_tokenizer_files(header))
    prompts, (before, after) = InfillPrompts(tokenizer), map(tokenizer.encode, ("def f(x):\n    return ", "\n\nf(3)"))
    ids = prompts.encode(Infill("def f(x):\n    ", "\n\nf(3)", prompt="return "), LONG)
    assert ids == [151659, *before, 151661, *after, 151660]
    assert {*prompts.ending_ids} == {*range(151659, 151665)}


def test_other_files_come_first(qwen: Model) -> None:
    files = f"{REPOSITORY}myproject\n{FILE}a.py\na = 1\n{FILE}b.py\nb = é{FILE}filename\n"
    assert qwen.written(Infill("a", "b", FILES)) == f"{files}{PREFIX}a{SUFFIX}b{MIDDLE}"


def test_a_format_without_files_leaves_them_out() -> None:
    assert Model(GRANITE).written(Infill("a", "b", FILES)) == "<fim_prefix>a<fim_suffix>b<fim_middle>"


def test_a_prompt_begins_as_the_tokenizer_begins_a_text() -> None:
    assert Model(adds_bos=True).written(Infill("a", "b", FILES)).startswith(BOS + REPOSITORY)


@given(prefix=SPELLED, suffix=SPELLED, prompt=SPELLED, file=st.tuples(SPELLED, SPELLED))
def test_no_text_spells_a_token(qwen: Model, prefix: str, suffix: str, prompt: str, file: tuple[str, str]) -> None:
    infill = Infill(prefix, suffix, (file,), prompt)
    ids = qwen.prompts.encode(infill, LONG)
    assert qwen.marks(ids) == [REPOSITORY, FILE, FILE, PREFIX, SUFFIX, MIDDLE]
    head = f"{REPOSITORY}myproject\n{FILE}{file[0]}\n{file[1]}{FILE}filename\n"
    assert qwen.written(infill) == f"{head}{PREFIX}{prefix}{prompt}{SUFFIX}{suffix}{MIDDLE}"


def test_a_quarter_is_left_to_the_middle_and_of_the_rest_to_the_suffix(qwen: Model) -> None:
    numbers = "".join(f"{number:04}" for number in range(1000))
    # 240 tokens, three of them marks.
    text = qwen.written(Infill(numbers, numbers, prompt="line"), max_length=320)
    prefix, suffix = text.removeprefix(PREFIX).removesuffix(MIDDLE).split(SUFFIX)
    assert suffix == numbers[: 237 // 4]
    assert (numbers + "line").endswith(prefix)
    assert 237 - len(suffix) - 320 // 8 < len(prefix) <= 237 - len(suffix)
    # What one does not need is the other's.
    assert qwen.written(Infill("a", numbers), max_length=320) == f"{PREFIX}a{SUFFIX}{numbers[:236]}{MIDDLE}"
    assert qwen.written(Infill(numbers[:236], "b"), max_length=320) == f"{PREFIX}{numbers[:236]}{SUFFIX}b{MIDDLE}"


def test_the_oldest_files_are_left_out_first(qwen: Model) -> None:
    files = tuple((f"{number}.py", "x" * 30) for number in range(8))
    texts = [qwen.written(Infill("y" * size, "z", files), max_length=320) for size in range(240)]
    found = [[number for number in range(8) if f"{FILE}{number}.py\n" in text] for text in texts]
    assert found[0] == [3, 4, 5, 6, 7]
    assert all(numbers == list(range(8))[8 - len(numbers) :] for numbers in found)
    assert sorted({len(numbers) for numbers in found}) == [0, 1, 2, 3, 4, 5]
    # None of the room goes to them while a text around the middle is cut.
    assert texts[230] == f"{PREFIX}{'y' * 230}{SUFFIX}z{MIDDLE}"


@pytest.mark.parametrize("length", [1000, 100_000], ids=["cut in tokens", "cut in characters first"])
def test_a_growing_prefix_keeps_its_beginning_for_many_requests(qwen: Model, length: int) -> None:
    """Otherwise each letter that a user types would change all of the prompt, and nothing would be cached."""
    text = "".join(f"{number:06}" for number in range(length))
    asked = [Infill(text[:length], "", prompt="x" * typed) for typed in range(40)]
    assert len({qwen.written(each, max_length=320)[:60] for each in asked}) <= 3


def test_texts_are_cut_before_they_are_tokenized(qwen: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenized: list[str] = []

    def tokens_of(text: str) -> list[int]:
        tokenized.append(text)
        return [7] * len(text)

    monkeypatch.setattr(qwen.prompts, "_tokens_of", tokens_of)
    qwen.prompts.encode(Infill("a" * 10**5, "b" * 10**5, (("c" * 10**5, "d" * 10**5),)), 64)
    assert max(map(len, tokenized)) <= 64 * 32


def test_a_middle_ends_with_any_token_of_the_format(qwen: Model) -> None:
    assert {*qwen.prompts.ending_ids} == {qwen.ids[name] for name in QWEN}
    granite = Model(GRANITE)
    assert {*granite.prompts.ending_ids} == {granite.ids[name] for name in GRANITE}


TOKENIZERS: dict[str, Callable[[], dict[str, bytes]]] = {
    # It has tokens for repositories and files.
    "smollm2": lambda: load_model("smollm2-135m", torch.bfloat16, in_place=True).tokenizer_files,
    "no middle": lambda: tokenizer_files(QWEN[:2]),
    "no added tokens": lambda: dummy_tokenizer_files(32),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_model_without_the_tokens_refuses(name: str) -> None:
    prompts = InfillPrompts(Tokenizer(TOKENIZERS[name]()))
    for ask in (lambda: prompts.encode(Infill("a", "b"), LONG), lambda: prompts.ending_ids):
        with pytest.raises(InvalidArgument, match="infill is not supported: this model has no fill-in-the-middle"):
            ask()
