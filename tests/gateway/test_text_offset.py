"""Where each token's text begins: `text_offset` counts characters of the text that is returned."""

import codecs
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.byte_fallback import write_byte_fallback_model
from tests.byte_level import TEXT, write_byte_level_model
from tests.conftest import SMALL_FLAGS
from tests.gateway.conftest import RunningGateway, StartGateway
from tests.hosted import Host

pytestmark = pytest.mark.slow

BROKEN = "\ufffd"
# Most of what these models write are parts of characters; special tokens, of which 0 ends a text, come too.
MODELS = {"byte level": write_byte_level_model, "byte fallback": write_byte_fallback_model}
ASKED: dict[str, Any] = {
    "prompt": "☃日本 " + TEXT, "max_tokens": 60, "temperature": 1, "seed": 3, "logprobs": 1, "ignore_eos": True,
    "logit_bias": {"0": 3, "1": 3, "2": 3},
}  # fmt: skip
WAYS: dict[str, dict[str, Any]] = {
    "output": {},
    "echo": {"echo": True},
    "samples that echo": {"echo": True, "n": 3},
    "a prompt alone": {"echo": True, "max_tokens": 0},
    "a prompt that ends in half a character": {"prompt": "☃", "echo": True},
}


@pytest.fixture(scope="module", params=MODELS)
def url(
    request: pytest.FixtureRequest, start_gateway: StartGateway, host: Host, tmp_path_factory: pytest.TempPathFactory
) -> str:
    write: Callable[[Path], None] = MODELS[request.param]
    folder = tmp_path_factory.mktemp("model")
    write(folder)
    flags = ("--model", str(folder), *SMALL_FLAGS)
    return start_gateway(host.trio(flags, flags)).url


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        yield client


async def choices_of(http: httpx2.AsyncClient, **asked: Any) -> list[dict[str, Any]]:
    """The choices of a whole answer, which a stream must repeat: text and offsets, neither ahead of the other."""
    body = {**ASKED, **asked}
    response = await http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    choices: list[dict[str, Any]] = response.json()["choices"]
    streamed = await http.post("/v1/completions", json={**body, "stream": True})
    found: dict[int, tuple[str, list[str], list[int]]] = {}
    for line in streamed.text.splitlines():
        for part in json.loads(line[6:])["choices"] if line.startswith("data: {") else []:
            text, tokens, offsets = found.get(part["index"], ("", [], []))
            text += part["text"]
            tokens, offsets = tokens + part["logprobs"]["tokens"], offsets + part["logprobs"]["text_offset"]
            assert max(offsets, default=0) <= len(text), "a token comes before its text"
            found[part["index"]] = text, tokens, offsets
    for choice in choices:
        logprobs = choice["logprobs"]
        assert found[choice["index"]] == (choice["text"], logprobs["tokens"], logprobs["text_offset"])
    return choices


def utf8_of(name: str) -> bytes:
    return bytes.fromhex(name[len("bytes:") :].replace("\\x", "")) if name.startswith("bytes:") else name.encode()


def check(choice: dict[str, Any]) -> None:
    """Where bytes make no character it is not said which of them brings what."""
    text, names, offsets = choice["text"], choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert len(names) == len(offsets)
    assert (offsets[0], offsets) == (0, sorted(offsets))
    for name, (begin, end) in zip(names, pairwise([*offsets, len(text)]), strict=True):
        said = text[begin:end]
        if said and BROKEN not in said and not name.startswith("bytes:"):
            assert said.strip() == name.strip()


@pytest.mark.parametrize("way", WAYS)
async def test_offsets_say_where_each_tokens_text_is(http: httpx2.AsyncClient, way: str) -> None:
    choices = await choices_of(http, **WAYS[way])
    for choice in choices:
        check(choice)
    assert any(name.startswith("bytes:") for choice in choices for name in choice["logprobs"]["tokens"])


async def test_tokens_begin_where_the_first_character_that_they_are_a_part_of_does(http: httpx2.AsyncClient) -> None:
    [choice] = await choices_of(http, echo=True, max_tokens=0)
    decoder, expected = codecs.getincrementaldecoder("utf-8")(), [0]
    for name in choice["logprobs"]["tokens"]:
        expected.append(expected[-1] + len(decoder.decode(utf8_of(name))))
    # The second model's tokenizer puts a space before a text, and takes it off again.
    surplus = expected.pop() - len(choice["text"])
    assert surplus in (0, 1)
    assert choice["logprobs"]["text_offset"] == [max(0, at - surplus) for at in expected]


async def test_words_begin_with_the_space_before_them(gateway_service: RunningGateway) -> None:
    """A tokenizer without a decoder, whose tokens are joined by spaces."""
    body = {"prompt": "t3 t14 t159 t2", "max_tokens": 3, "echo": True, "logprobs": 0, "ignore_eos": True}
    async with httpx2.AsyncClient(base_url=gateway_service.url, timeout=60) as http:
        [choice] = (await http.post("/v1/completions", json=body)).json()["choices"]
    check(choice)
    assert choice["logprobs"]["text_offset"][:4] == [0, 2, 6, 11]


async def test_a_token_without_text_begins_where_the_next_one_does(http: httpx2.AsyncClient) -> None:
    letter = (await http.post("/tokenize", json={"prompt": "a"})).json()["tokens"][-1]
    [choice] = await choices_of(http, temperature=1000, logit_bias={}, allowed_token_ids=[0, 1, 2, letter])
    names = choice["logprobs"]["tokens"]
    assert (len(set(names)), set(choice["text"])) == (4, {"a"})
    assert choice["logprobs"]["text_offset"] == [names[:at].count("a") for at in range(len(names))]


def offsets_of(choice: dict[str, Any]) -> list[tuple[str, int]]:
    return list(zip(choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"], strict=True))


async def test_a_stop_string_that_is_not_completed_moves_no_offset(http: httpx2.AsyncClient) -> None:
    [plain] = await choices_of(http)
    text = plain["text"]
    # Held back for a while, each at another place.
    stops = [text[at : at + 6] + "☃" for at in range(0, len(text) - 6, 7)][:60]
    [held] = await choices_of(http, stop=stops)
    assert (held["text"], offsets_of(held)) == (text, offsets_of(plain))


@pytest.mark.parametrize("echo", [False, True])
async def test_tokens_of_a_stop_string_are_at_the_end_of_the_text(http: httpx2.AsyncClient, echo: bool) -> None:
    [plain] = await choices_of(http, echo=echo)
    [alone] = await choices_of(http)
    output, prompt = alone["text"], plain["text"].removesuffix(alone["text"])
    stop = output[len(output) // 2 :][:9]
    [stopped] = await choices_of(http, echo=echo, stop=stop)
    assert stopped["text"] == (prompt if echo else "") + output[: output.index(stop)]
    given = offsets_of(stopped)
    assert given == [(name, min(at, len(stopped["text"]))) for name, at in offsets_of(plain)[: len(given)]]
