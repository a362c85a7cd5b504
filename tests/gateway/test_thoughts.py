"""Reasoning over HTTP: `reasoning_content` beside the content, in answers, streams and messages."""

import json
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest

from paceline.v1 import generation_pb2
from tests.gateway.fake_coordinator import FakeCoordinator

ASKED = {"role": "user", "content": "t1"}
PATH = "/v1/chat/completions"


def reasoning_round(reasoning: str, text: str) -> generation_pb2.GenerateResponse:
    return generation_pb2.GenerateResponse(
        token_ids=[1], reasoning=reasoning, text=text, text_lengths=[len(text)],
        origins=[generation_pb2.ORIGIN_TARGET],
    )  # fmt: skip


@pytest.fixture
def http(fake_http: httpx2.AsyncClient) -> httpx2.AsyncClient:
    return fake_http


@pytest.fixture
def thinking(coordinator: FakeCoordinator) -> FakeCoordinator:
    coordinator.rounds = [reasoning_round("Two and", ""), reasoning_round(" two.", "Fo"), reasoning_round("", "ur.")]
    return coordinator


@pytest.mark.usefixtures("thinking")
async def test_a_whole_answer_has_its_reasoning_apart(http: httpx2.AsyncClient) -> None:
    answer = (await http.post(PATH, json={"messages": [ASKED]})).json()
    message = answer["choices"][0]["message"]
    assert message == {
        "role": "assistant", "content": "Four.", "refusal": None, "reasoning_content": "Two and two."
    }  # fmt: skip
    assert "reasoning_tokens" in answer["usage"]["completion_tokens_details"]


async def test_an_answer_without_reasoning_has_no_key_for_it(http: httpx2.AsyncClient) -> None:
    answer = (await http.post(PATH, json={"messages": [ASKED]})).json()
    assert "reasoning_content" not in answer["choices"][0]["message"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


@pytest.mark.usefixtures("thinking")
async def test_a_stream_brings_the_reasoning_before_the_content(http: httpx2.AsyncClient) -> None:
    async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as client:
        given: Any = {"model": "tiny", "messages": [ASKED], "stream": True}
        deltas = [chunk.choices[0].delta.to_dict() async for chunk in await client.chat.completions.create(**given)]
    assert deltas == [
        {"role": "assistant", "content": ""}, {"reasoning_content": "Two and"}, {"reasoning_content": " two."},
        {"content": "Fo"}, {"content": "ur."}, {},
    ]  # fmt: skip


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning"])
async def test_reasoning_sent_back_reaches_the_coordinator(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, key: str
) -> None:
    said = {"role": "assistant", "content": "Four.", key: "Two and two."}
    assert (await http.post(PATH, json={"messages": [ASKED, said]})).status_code == 200
    assert coordinator.asked[-1].chat.messages[1].reasoning == "Two and two."
    wrong = await http.post(PATH, json={"messages": [ASKED, {**said, key: 3}]})
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (400, f"messages[1].{key}")


# The template, the effort, and what the template gets.
EFFORTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "its own switch": ("{{ reasoning_effort }}", {"reasoning_effort": "low"}, '{"reasoning_effort": "low"}'),
    "none, by Qwen's switch": ("{{ enable_thinking }}", {"reasoning_effort": "none"}, '{"enable_thinking": false}'),
    "more, by Qwen's switch": ("{{ enable_thinking }}", {"reasoning_effort": "high"}, '{"enable_thinking": true}'),
    "none, by DeepSeek's switch": (
        "{% if thinking %}x{% endif %}",
        {"reasoning_effort": "none"},
        '{"thinking": false}',
    ),
    "none, by both": (
        "{% if enable_thinking %}{{ reasoning_effort }}{% endif %}",
        {"reasoning_effort": "none"},
        '{"reasoning_effort": "none", "enable_thinking": false}',
    ),
    "a message's key, which is no switch": (
        "Keep thinking. {{ message.thinking }}{{ message['enable_thinking'] }}",
        {"reasoning_effort": "none"},
        "",
    ),
    "no switch": ("{{ messages }}", {"reasoning_effort": "high"}, ""),
    "no template": ("", {"reasoning_effort": "none"}, ""),
    "beside other options, which count more": (
        "{{ reasoning_effort }}",
        {"reasoning_effort": "low", "chat_template_kwargs": {"reasoning_effort": "high", "x": 1}},
        '{"reasoning_effort": "high", "x": 1}',
    ),
}


@pytest.mark.parametrize("name", EFFORTS)
async def test_an_effort_is_told_to_templates_that_know_it(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, name: str
) -> None:
    coordinator.chat_template, fields, options = EFFORTS[name]
    assert (await http.post(PATH, json={"messages": [ASKED], **fields})).status_code == 200
    assert coordinator.asked[-1].chat.template_options == options


@pytest.mark.parametrize(
    ("effort", "refused", "told"),
    [
        ("high", ("minimal", "low", "medium", "xhigh", "max"), "high"),
        ("none", ("minimal", "low", "medium", "xhigh", "max"), "none"),
        # Some reasoning is wanted, and of two as near the greater.
        ("low", ("minimal", "low", "medium", "xhigh", "max"), "high"),
        ("max", ("minimal", "low", "xhigh", "max"), "high"),
        ("medium", ("none", "medium"), "high"),
        ("minimal", ("minimal", "high"), "low"),
        # None of what it takes is meant.
        ("none", ("none",), None),
        ("low", ("minimal", "low", "medium", "high", "xhigh", "max"), None),
    ],
)
async def test_an_effort_that_the_template_refuses_becomes_the_nearest(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, effort: str, refused: Sequence[str], told: str | None
) -> None:
    coordinator.chat_template, coordinator.refused_efforts = "{{ reasoning_effort }}{{ thinking }}", refused
    assert (await http.post(PATH, json={"messages": [ASKED], "reasoning_effort": effort})).status_code == 200
    options = json.loads(coordinator.asked[-1].chat.template_options)
    assert options == ({} if told is None else {"reasoning_effort": told}) | {"thinking": effort != "none"}
    # The template's own arguments stay as they are.
    given = {"reasoning_effort": effort}
    assert (await http.post(PATH, json={"messages": [ASKED], "chat_template_kwargs": given})).status_code == 200
    assert json.loads(coordinator.asked[-1].chat.template_options) == given


async def test_a_template_of_tags_that_nothing_closes(http: httpx2.AsyncClient, coordinator: FakeCoordinator) -> None:
    """It is read in linear time: else this takes minutes, which is more than a test may."""
    coordinator.chat_template = "{{ thinking }}" + "{{ x " * 300_000
    assert (await http.post(PATH, json={"messages": [ASKED], "reasoning_effort": "low"})).status_code == 200
    assert coordinator.asked[-1].chat.template_options == '{"thinking": true}'


@pytest.mark.parametrize("effort", ["much", 3, ""])
async def test_another_effort_is_refused(http: httpx2.AsyncClient, effort: Any) -> None:
    response = await http.post(PATH, json={"messages": [ASKED], "reasoning_effort": effort})
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "reasoning_effort")
    assert "one of none, minimal, low, medium, high, xhigh" in error["message"]
