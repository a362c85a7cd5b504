"""The text between two others: llama.cpp's /infill, and suffix of a completion."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import orjson
import pytest

from paceline.client import AsyncClient
from paceline.infill_prompt import Infill
from paceline.sampling_params import SamplingParams
from tests.gateway.conftest import StartGateway
from tests.services import Trio

PREFIX, SUFFIX = "def f(x):\n", "\nprint(f(1))\n"
# As llama.vim asks, with its names of what it reads.
LLAMA_VIM: dict[str, Any] = {
    "input_prefix": PREFIX, "input_suffix": SUFFIX, "input_extra": [{"text": "y = 1\n", "time": [3, 4], "filename": "g.py"}],
    "prompt": "    return ", "n_predict": 12, "n_indent": 4, "top_k": 40, "top_p": 0.99, "stream": False,
    "samplers": ["top_k", "top_p", "infill"], "cache_prompt": True, "t_max_prompt_ms": 500, "t_max_predict_ms": 1500,
    "response_fields": [
        "content", "timings/prompt_n", "timings/prompt_ms", "timings/prompt_per_token_ms", "timings/prompt_per_second",
        "timings/predicted_n", "timings/predicted_ms", "timings/predicted_per_token_ms",
        "timings/predicted_per_second", "truncated", "tokens_cached",
    ],
}  # fmt: skip
ASK = Infill(PREFIX, SUFFIX, (("g.py", "y = 1\n"),), "    return ")
GREEDY = {"input_prefix": PREFIX, "input_suffix": SUFFIX, "n_predict": 12, "temperature": 0}


@pytest.fixture
async def editor(start_gateway: StartGateway, fill_in_trio: Trio) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=start_gateway(fill_in_trio).url, timeout=60, verify=False) as client:
        yield client


async def test_llama_vim_is_answered(editor: httpx2.AsyncClient) -> None:
    warm = {**LLAMA_VIM, "n_predict": 0, "temperature": 0.0, "samplers": [], "response_fields": [""]}
    response = await editor.post("/infill", json=warm)
    assert (response.status_code, response.json()) == (200, {})
    response = await editor.post("/infill", json=LLAMA_VIM)
    found = response.json()
    assert response.status_code == 200
    assert list(found) == LLAMA_VIM["response_fields"]
    assert found["timings/predicted_n"] > 0
    assert found["timings/predicted_per_second"] > 0
    again = (await editor.post("/infill", json=LLAMA_VIM)).json()
    assert again["tokens_cached"] > 0


async def test_the_middle_is_that_of_the_python_client(editor: httpx2.AsyncClient, fill_in_trio: Trio) -> None:
    asked = {**LLAMA_VIM, "temperature": 0, "response_fields": None}
    whole = (await editor.post("/infill", json=asked)).json()
    async with AsyncClient(fill_in_trio.address) as client:
        expected = await client.complete(ASK, SamplingParams(max_tokens=12, top_k=40, top_p=0.99))
    assert expected.finish is not None
    assert whole["content"] == expected.text
    assert whole["stop_type"] == {"stop": "eos", "length": "limit"}[expected.finish.reason]
    assert whole["tokens_predicted"] == len(expected.token_ids)
    assert whole["tokens_evaluated"] == expected.finish.prompt_tokens
    response = await editor.post("/infill", json={**asked, "stream": True})
    events = [orjson.loads(each.removeprefix("data: ")) for each in response.text.split("\n\n") if each]
    assert "".join(each["content"] for each in events) == expected.text
    assert [each["stop"] for each in events] == [False] * (len(events) - 1) + [True]


async def test_a_completion_with_a_suffix_is_an_infill(editor: httpx2.AsyncClient) -> None:
    filled = (await editor.post("/infill", json=GREEDY)).json()["content"]
    asked = {"prompt": PREFIX, "suffix": SUFFIX, "max_tokens": 12, "temperature": 0}
    found = (await editor.post("/v1/completions", json=asked)).json()
    assert found["choices"][0]["text"] == filled
    both = (await editor.post("/v1/completions", json={**asked, "prompt": [PREFIX, PREFIX], "n": 2})).json()
    assert [each["text"] for each in both["choices"]] == [filled] * 4
    plain = (await editor.post("/v1/completions", json={**asked, "suffix": ""})).json()
    assert plain["usage"]["prompt_tokens"] < found["usage"]["prompt_tokens"]


async def test_a_stop_string_is_named(editor: httpx2.AsyncClient) -> None:
    text = (await editor.post("/infill", json=GREEDY)).json()["content"]
    stopped = (await editor.post("/infill", json={**GREEDY, "stop": [text[1], "no such text"]})).json()
    assert (stopped["content"], stopped["stop_type"], stopped["stopping_word"]) == (text[:1], "word", text[1])


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"input_prefix": 3}, "input_prefix"),
        ({"input_suffix": ["x"]}, "input_suffix"),
        ({"input_extra": {"text": "x"}}, "input_extra"),
        ({"input_extra": [{"text": "x"}, {"filename": "x"}]}, "input_extra[1]"),
        ({"input_extra": [{"text": "x", "filename": 3}]}, "input_extra[0]"),
        ({"prompt": ["x"]}, "prompt"),
        ({"n_predict": "many"}, "n_predict"),
        ({"temperature": -1}, "temperature"),
        ({"repeat_penalty": 1000}, "repeat_penalty"),
        ({"response_fields": "content"}, "response_fields"),
    ],
)
async def test_a_bad_value_is_refused_by_name(editor: httpx2.AsyncClient, body: dict[str, Any], field: str) -> None:
    response = await editor.post("/infill", json={**GREEDY, **body})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, field)
    assert field.split("[")[0] in error["message"]


@pytest.mark.parametrize("more", [{"prompt": [1, 2]}, {"echo": True}])
async def test_a_suffix_goes_with_text_alone(editor: httpx2.AsyncClient, more: dict[str, Any]) -> None:
    body = {"prompt": PREFIX, "suffix": SUFFIX, **more}
    response = await editor.post("/v1/completions", json=body)
    assert (response.status_code, response.json()["error"]["param"]) == (400, next(iter(more)))


async def test_a_model_without_the_format_refuses(http: httpx2.AsyncClient) -> None:
    found = [
        (await http.post("/infill", json=GREEDY)).json(),
        (await http.post("/v1/completions", json={"prompt": "t1", "suffix": "t2"})).json(),
    ]
    assert [each["error"]["param"] for each in found] == ["input_prefix", "suffix"]
    assert all("fill-in-the-middle" in each["error"]["message"] for each in found)
