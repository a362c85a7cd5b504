"""The keys of a chat's messages: taken, refused by name, ignored. A row each."""

from typing import Any

import httpx2
import openai
import pytest

from gateway.requests import MESSAGE
from tests.gateway.conftest import RunningGateway

ASKED = {"role": "user", "content": "t1 t2"}
ANSWERED = {"role": "assistant", "content": "t3"}
# As servers give an assistant's message, and clients send it back.
REPLAYED: dict[str, dict[str, Any]] = {
    "vLLM": {
        "refusal": None, "annotations": None, "audio": None, "function_call": None, "tool_calls": [],
        "reasoning": None, "reasoning_content": None,
    },
    "LiteLLM": {"tool_calls": None, "function_call": None, "annotations": [], "provider_specific_fields": {"refusal": None}},
    "OpenRouter": {"refusal": None, "reasoning": None, "reasoning_details": [], "images": []},
    "Mistral": {"tool_calls": None, "prefix": False},
    "a page": {"id": "msg_1", "name": "Paceline", "reasoning_content": ""},
}  # fmt: skip
MISSPELLED: dict[str, tuple[dict[str, Any], str]] = {
    "content of a user": ({"role": "user", "contents": "x"}, "contents"),
    "content of an assistant": ({"role": "assistant", "Content": "x"}, "Content"),
    "role": ({"rol": "user", "content": "x"}, "rol"),
    "text of a part": ({"role": "user", "content": [{"type": "text", "txt": "x"}]}, "content[0].txt"),
    "a part's other key": (
        {"role": "user", "content": [{"type": "text", "text": "x", "image": "y"}]},
        "content[0].image",
    ),
}


async def ids_of(http: httpx2.AsyncClient, message: dict[str, Any]) -> Any:
    """What the model is given."""
    response = await http.post("/tokenize", json={"messages": [ASKED, message]})
    assert response.status_code == 200, response.text
    return response.json()["tokens"]


async def refusal_of(http: httpx2.AsyncClient, message: dict[str, Any]) -> dict[str, Any]:
    found: list[dict[str, Any]] = []
    for path in ("/v1/chat/completions", "/tokenize"):
        response = await http.post(path, json={"messages": [ASKED, message]})
        assert response.status_code == 400, response.text
        found.append(response.json()["error"])
    assert found[0] == found[1]
    return found[0]


@pytest.mark.parametrize("name", MESSAGE.refused)
async def test_a_key_that_would_change_the_answer_is_refused_unless_it_asks_for_nothing(
    http: httpx2.AsyncClient, name: str
) -> None:
    for value in ("something special", True, ["x"]):
        error = await refusal_of(http, {**ANSWERED, name: value})
        assert (error["param"], error["code"]) == (f"messages[1].{name}", "unsupported_field")
        assert error["message"].startswith(f"messages[1].{name} ")
    for neutral in (*MESSAGE.refused[name], None):
        assert await ids_of(http, {**ANSWERED, name: neutral}) == await ids_of(http, ANSWERED)


@pytest.mark.parametrize("name", MESSAGE.ignored)
async def test_a_key_that_is_ignored_changes_nothing(http: httpx2.AsyncClient, name: str) -> None:
    assert await ids_of(http, {**ANSWERED, name: {"any": "thing"}}) == await ids_of(http, ANSWERED)
    part = {"type": "text", "text": ANSWERED["content"], "cache_control": {"type": "ephemeral"}}
    assert await ids_of(http, {**ANSWERED, "content": [part]}) == await ids_of(http, ANSWERED)


async def test_an_answer_that_is_begun_is_continued(real_gateway: RunningGateway) -> None:
    """In each API's way: the text is that of the prompt without the end of the last message."""
    async with httpx2.AsyncClient(base_url=real_gateway.url, verify=False) as http:
        await check_that_an_answer_is_continued(http)


async def check_that_an_answer_is_continued(http: httpx2.AsyncClient) -> None:
    marked = {"messages": [ASKED, {**ANSWERED, "prefix": True}]}
    ids = (await http.post("/tokenize", json=marked)).json()["tokens"]
    assert ids != await ids_of(http, ANSWERED)
    asked = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
    whole = (await http.post("/v1/completions", json={"prompt": ids, **asked})).json()
    expected = whole["choices"][0]["text"]
    begun = {"messages": [ASKED, ANSWERED], **asked}
    bodies = [
        {**begun, **marked}, {**begun, "messages": [ASKED, {**ANSWERED, "partial": True}]},
        {**begun, "continue_final_message": True}, {**begun, "continue_final_message": True, "add_generation_prompt": False},
    ]  # fmt: skip
    for body in bodies:
        reply = (await http.post("/v1/chat/completions", json=body)).json()
        assert reply["choices"][0]["message"]["content"] == expected
    assert (await http.post("/v1/messages", json=begun)).json()["content"][0]["text"] == expected
    another = (await http.post("/v1/chat/completions", json=begun)).json()
    assert another["choices"][0]["message"]["content"] != expected


@pytest.mark.parametrize(
    "messages",
    [
        [{**ANSWERED, "prefix": True}, ASKED],
        [{**ASKED, "prefix": True}],
        [ASKED, {"role": "assistant", "content": " ", "prefix": True}],
        [
            ASKED,
            {**ANSWERED, "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}], "prefix": True},
        ],
    ],
    ids=["not the last", "a user's", "empty", "with a call"],
)
async def test_no_other_message_is_continued(http: httpx2.AsyncClient, messages: list[dict[str, Any]]) -> None:
    response = await http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1})
    place = next(at for at, each in enumerate(messages) if "prefix" in each)
    assert (response.status_code, response.json()["error"]["param"]) == (400, f"messages[{place}].prefix")


@pytest.mark.parametrize("name", MISSPELLED)
async def test_a_misspelled_key_is_refused_by_its_name(http: httpx2.AsyncClient, name: str) -> None:
    message, key = MISSPELLED[name]
    error = await refusal_of(http, message)
    assert (error["param"], error["code"]) == (f"messages[1].{key}", "unknown_field")


async def test_only_an_assistant_has_reasoning(http: httpx2.AsyncClient) -> None:
    for name in ("reasoning", "reasoning_content"):
        error = await refusal_of(http, {**ASKED, name: "Hm."})
        assert error["param"] == "messages[1].reasoning"


@pytest.mark.parametrize("name", REPLAYED)
async def test_an_answer_may_be_sent_back_as_it_came(http: httpx2.AsyncClient, name: str) -> None:
    assert await ids_of(http, {**ANSWERED, **REPLAYED[name]}) == await ids_of(http, ANSWERED)


def test_an_answer_of_ours_may_be_sent_back_as_it_came(client: openai.OpenAI) -> None:
    asked: Any = {"model": "dummy:tiny", "max_tokens": 3, "temperature": 0}
    message = client.chat.completions.create(messages=[ASKED], **asked).choices[0].message
    plain = {"role": "assistant", "content": message.content}
    answers = [
        client.chat.completions.create(messages=[ASKED, answer, ASKED], **asked).choices[0].message.content
        for answer in (message, message.model_dump(), message.to_dict(), plain)
    ]
    assert len(set(answers)) == 1


async def test_other_objects_with_named_keys_refuse_unknown_ones_too(http: httpx2.AsyncClient) -> None:
    body = {"messages": [ASKED], "prediction": {"type": "content", "contents": "t1"}}
    response = await http.post("/v1/chat/completions", json=body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prediction.contents"
