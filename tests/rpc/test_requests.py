"""What the Python client takes as a prompt, and what it says of all else."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from paceline.errors import InvalidArgument
from paceline.infill_prompt import Infill
from paceline.rpc.generation_messages import make_detokenize_request, make_request, make_tokenize_request
from paceline.v1 import generation_pb2

HELLO = {"role": "user", "content": "hello"}
LARGEST = 2**31 - 1


def request_of(prompt: Any, raw: bool = False, **options: Any) -> generation_pb2.GenerateRequest:
    return make_request(prompt, None, None, raw, **options)


@pytest.mark.parametrize(
    "ids",
    [[5, LARGEST], (5, LARGEST), np.array([5, LARGEST]), list(np.array([5, LARGEST])), np.array([5, LARGEST], "<u4")],
    ids=["list", "tuple", "array", "numpy's numbers", "unsigned array"],
)
def test_token_ids_in_any_list(ids: Any) -> None:
    assert list(request_of(ids).token_ids.ids) == [5, LARGEST]
    assert list(request_of("x", prediction=ids).prediction_token_ids.ids) == [5, LARGEST]
    assert list(make_tokenize_request(ids, False, True, True).token_ids.ids) == [5, LARGEST]
    assert list(make_detokenize_request(ids, True).token_ids) == [5, LARGEST]


def test_no_ids_are_ids() -> None:
    assert request_of([]).WhichOneof("prompt") == "token_ids"
    assert request_of(np.array([], dtype=int)).WhichOneof("prompt") == "token_ids"


def test_messages_keep_their_order() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {**HELLO, "name": "Ada"}]
    found = [(message.role, message.content) for message in request_of(messages).chat.messages]
    assert found == [("system", "Be brief."), ("user", "hello")]


def test_an_infill_is_a_prompt() -> None:
    infill = Infill("a", "b", (("f.py", "c"), ["g.py", ""]), "d")  # type: ignore[arg-type]
    files = [{"name": "f.py", "text": "c"}, {"name": "g.py", "text": ""}]
    for raw in (False, True):
        made = request_of(infill, raw).infill
        assert made == generation_pb2.Infill(prefix="a", suffix="b", extra=files, prompt="d")  # type: ignore[arg-type]
    assert make_tokenize_request(infill, False, True, True).infill == made
    # Empty texts, too, ask for a middle.
    assert request_of(Infill("", "")).WhichOneof("prompt") == "infill"


IDS = "it must be a list of token ids, whole numbers in [0, 2147483648)"
ANY = 'it must be a text, a list of messages {"role": text, "content": text}, an Infill, or a list of token ids'
TEXT = "it must be a text in UTF-8"
BAD_PROMPTS: dict[str, tuple[Any, str]] = {
    "below 0": ([-1], f"prompt is -1; {IDS}"),
    "too large": ([5, 2**32], f"prompt is 4294967296; {IDS}"),
    "a large numpy id": (np.array([5, 2**31]), IDS),
    "true": ([True], f"prompt is True; {IDS}"),
    "fractions": ([1.0], f"prompt is [1.0]; {ANY}"),
    "texts": (["hello"], f"prompt is ['hello']; {ANY}"),
    "a matrix": (np.array([[5, 6]]), f"prompt is array([[5, 6]]); {ANY}"),
    "an array without dimensions": (np.array(5), f"prompt is array(5); {ANY}"),
    "nothing": (None, f"prompt is None; {ANY}"),
    "a number": (5, f"prompt is 5; {ANY}"),
    "bytes": (b"abc", f"prompt is b'abc'; {ANY}"),
    "one message": (HELLO, f"prompt is {HELLO}; {ANY}"),
    "ids before a message": ([5, 6, HELLO], f"prompt is {HELLO}; {IDS}"),
    "an id behind a message": ([HELLO, 5], "prompt[1] is 5; it must be a message, as prompt[0] is"),
    "no role": ([HELLO, {"content": "hi"}], f"prompt[1].role is None; {TEXT}"),
    "a role that is no text": ([{"role": 5, "content": "hi"}], f"prompt[0].role is 5; {TEXT}"),
    "half of a character in a role": ([{"role": "\ud83d", "content": "hi"}], f"prompt[0].role is '\\ud83d'; {TEXT}"),
    "no content": ([{"role": "user", "content": None}], f"prompt[0].content is None; {TEXT}"),
    "parts": ([{"role": "user", "content": [{"type": "text"}]}], f"prompt[0].content is [{{'type': 'text'}}]; {TEXT}"),
    "an infill without a suffix": (Infill("a", None), f"prompt.suffix is None; {TEXT}"),  # type: ignore[arg-type]
    "files in a text": (Infill("a", "b", "files"), "prompt.extra is 'files'; it must be a list of pairs (name, text)"),  # type: ignore[arg-type]
    "a file without a text": (Infill("a", "b", (("f",),)), "prompt.extra[0] is ('f',); it must be a pair (name, text)"),  # type: ignore[arg-type]
    "a file of bytes": (Infill("a", "b", (("f", b"c"),)), f"prompt.extra[0] is b'c'; {TEXT}"),  # type: ignore[arg-type]
    "half of a character": ("\ud83d", f"prompt is '\\ud83d'; {TEXT}"),
}


@pytest.mark.parametrize("name", BAD_PROMPTS)
def test_a_bad_prompt_is_refused_by_name(name: str) -> None:
    prompt, words = BAD_PROMPTS[name]
    with pytest.raises(InvalidArgument) as caught:
        request_of(prompt)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prediction": 5}, f"prediction is 5; {IDS}"),
        ({"prediction": b"abc"}, f"prediction is b'abc'; {IDS}"),
        ({"prediction": [5, -1]}, f"prediction is -1; {IDS}"),
        ({"request_id": None}, f"request_id is None; {TEXT}"),
        ({"cache_salt": 5}, f"cache_salt is 5; {TEXT}"),
        ({"template_options": []}, "template_options is []; it must be a dict that JSON can hold"),
    ],
)
def test_a_bad_option_is_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        request_of("x", **options)
    assert words in str(caught.value)


TOO_LONG = "a" * (16 << 20)
TOO_MANY = [2**30] * (4 << 20)
# What is made, and the field that is too large.
OVER: dict[str, tuple[Callable[[], object], str]] = {
    "a text": (lambda: request_of(TOO_LONG, raw=True), "prompt"),
    "a message": (lambda: request_of([{**HELLO, "content": TOO_LONG}]), "prompt"),
    "ids": (lambda: request_of(TOO_MANY), "prompt"),
    "a text to tokenize": (lambda: make_tokenize_request(TOO_LONG, True, True, True), "prompt"),
    "ids to detokenize": (lambda: make_detokenize_request(TOO_MANY, True), "token_ids"),
    "a prediction": (lambda: request_of("a", prediction=TOO_LONG), "prediction"),
    "two halves": (lambda: request_of(TOO_LONG[: 8 << 20], prediction=TOO_LONG[: 8 << 20]), "prediction"),
    "options": (lambda: request_of("a", template_options={"a": TOO_LONG}), "template_options"),
}


@pytest.mark.parametrize("name", OVER)
def test_more_than_a_message_may_have_is_refused_by_name(name: str) -> None:
    make, field = OVER[name]
    with pytest.raises(
        InvalidArgument, match=rf"^{field} is too long: with it the request has \d+ bytes; a message may have 16777216$"
    ):
        make()


def test_a_message_of_the_largest_size_is_made() -> None:
    request = request_of(TOO_LONG[:-5], raw=True)
    assert request.ByteSize() == 16 << 20


def test_special_tokens_of_raw_text_are_always_parsed() -> None:
    with pytest.raises(InvalidArgument, match="parse_special_tokens is True; it must be False for a prompt without"):
        request_of("x", raw=True, parse_special_tokens=True)


@pytest.mark.parametrize(
    "options", [{"parse_special_tokens": True}, {"template_options": {"a": 1}}, {"tools": [{"type": "function"}]}]
)
def test_an_infill_is_no_chat(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="for a prompt without a chat template"):
        request_of(Infill("a", "b"), **options)


def test_template_options_are_as_long_as_their_characters() -> None:
    assert request_of("x", template_options={"a": "é"}).chat.template_options == '{"a": "é"}'
    with pytest.raises(InvalidArgument, match=r"template_options is .*; it must be a text in UTF-8"):
        request_of("x", template_options={"a": "\ud83d"})
