"""Tools in chats: what reaches the coordinator, what is refused by the client's own name, and calls in answers."""

import json
from typing import Any

import httpx2
import openai
import pydantic
import pytest

from gateway.app import make_app
from gateway.config import GatewaySettings
from gateway.dialects.chat import Chat
from gateway.items import Items
from paceline.errors import InvalidArgument
from paceline.results import Chunk, ToolCallDelta
from paceline.v1 import generation_pb2
from tests.gateway.conftest import RunningGateway
from tests.gateway.fake_coordinator import FakeCoordinator

CHATS = "/v1/chat/completions"
ASKED = {"role": "user", "content": "t1"}


def tool(name: str, **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def allowed(mode: Any, *tools: Any) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


TOOLS = [tool("add", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}, strict=True), tool("é")]


@pytest.fixture
def http(fake_http: httpx2.AsyncClient) -> httpx2.AsyncClient:
    return fake_http


async def post(http: httpx2.AsyncClient, **fields: Any) -> httpx2.Response:
    return await http.post(CHATS, json={"messages": [ASKED], "max_tokens": 4, **fields})


# What is asked beside TOOLS, and the choice, the tools and whether several calls may come, as the coordinator gets them.
TAKEN: dict[str, tuple[dict[str, Any], str, list[Any], bool]] = {
    "nothing": ({}, "auto", TOOLS, True),
    "nulls": ({"tool_choice": None, "parallel_tool_calls": None}, "auto", TOOLS, True),
    "none": ({"tool_choice": "none"}, "none", TOOLS, True),
    "required": ({"tool_choice": "required"}, "required", TOOLS, True),
    "one call": ({"tool_choice": "auto", "parallel_tool_calls": False}, "auto", TOOLS, False),
    "named": ({"tool_choice": tool("é")}, "é", TOOLS, True),
    "allowed": ({"tool_choice": allowed("required", tool("é"))}, "required", TOOLS[1:], True),
    "all allowed": ({"tool_choice": allowed("auto", tool("é"), tool("add"))}, "auto", TOOLS, True),
}


@pytest.mark.parametrize("name", TAKEN)
async def test_tools_reach_the_coordinator(http: httpx2.AsyncClient, coordinator: FakeCoordinator, name: str) -> None:
    fields, choice, tools, parallel = TAKEN[name]
    response = await post(http, tools=TOOLS, **fields)
    assert response.status_code == 200, response.text
    chat = coordinator.asked[0].chat
    assert (chat.tool_choice, json.loads(chat.tools), chat.parallel_tool_calls) == (choice, tools, parallel)


@pytest.mark.parametrize("fields", [{"tools": []}, {"tools": None, "tool_choice": "auto"}, {"tool_choice": "none"}])
async def test_no_tools_are_no_tools(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, fields: dict[str, Any]
) -> None:
    assert (await post(http, **fields)).status_code == 200
    chat = coordinator.asked[0].chat
    assert chat == generation_pb2.Chat(messages=[ASKED], template_time=chat.template_time)


@pytest.mark.parametrize(("given", "choice"), [({}, "required"), ({"tool_choice": "auto"}, "auto")])
async def test_the_default_choice_is_a_setting(
    coordinator: FakeCoordinator, tmp_path: Any, given: dict[str, Any], choice: str
) -> None:
    address = f"unix:{tmp_path}/coordinator.sock"
    app = make_app(GatewaySettings(coordinators=address, tool_choice_default="required"))
    transport = httpx2.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http,
    ):
        assert (await post(http, tools=TOOLS, **given)).status_code == 200
    assert coordinator.asked[0].chat.tool_choice == choice


CHOICE, ALLOWED = "tool_choice", "tool_choice.allowed_tools"
# What is asked, the field named, and words of the message.
REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "tools as an object": ({"tools": tool("f")}, "tools", "a list of tools"),
    "parallel_tool_calls": ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "true or false"),
    "an unknown choice": ({CHOICE: "any"}, CHOICE, "one of none, auto, required"),
    "a choice without tools": ({"tools": [], CHOICE: "required"}, CHOICE, "needs tools"),
    "a name without tools": ({"tools": None, CHOICE: tool("f")}, CHOICE, "needs tools"),
    "another type": ({CHOICE: {"type": "custom"}}, f"{CHOICE}.type", "one of function, allowed_tools"),
    "no name": ({CHOICE: {"type": "function"}}, f"{CHOICE}.function.name", "the name of one of the tools"),
    "a name that is a choice": ({CHOICE: tool("auto")}, f"{CHOICE}.function.name", "the name of one of the tools"),
    "an unknown key": ({CHOICE: {**tool("é"), "mode": "auto"}}, f"{CHOICE}.mode", "unknown field"),
    "allowed_tools": ({CHOICE: {"type": "allowed_tools"}}, ALLOWED, "mode and tools"),
    "mode": ({CHOICE: allowed("none", tool("é"))}, f"{ALLOWED}.mode", "auto or required"),
    "none allowed": ({CHOICE: allowed("auto")}, f"{ALLOWED}.tools", "at least one"),
    "an unknown one allowed": ({CHOICE: allowed("auto", tool("é"), tool("x"))}, f"{ALLOWED}.tools[1]", "one of the tools"),
    "functions": ({"functions": [{"name": "f"}]}, "functions", "use tools"),
    "function_call": ({"function_call": {"name": "f"}}, "function_call", "use tool_choice"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
async def test_a_tool_is_refused_by_its_field(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, name: str
) -> None:
    fields, param, words = REFUSED[name]
    response = await post(http, **{"tools": TOOLS, **fields})
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert error["param"] == param
    assert param in error["message"]
    assert words in error["message"]
    assert coordinator.asked == []


SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}
# What is asked beside TOOLS, the field that the coordinator names, and the field that the client knows.
RENAMED: dict[str, tuple[dict[str, Any], str, str]] = {
    "a tool": ({}, "tools[1].type", "tools[1].type"),
    "an allowed tool": ({CHOICE: allowed("auto", tool("é"))}, "tools[0].function.name", "tools[1].function.name"),
    "a choice": ({CHOICE: "auto"}, CHOICE, CHOICE),
    "a name": ({CHOICE: tool("é")}, CHOICE, f"{CHOICE}.function.name"),
    "a format beside tools": ({"response_format": SCHEMA}, "format", "response_format.json_schema.schema"),
    "tools in options": ({}, "chat.template_options", "chat_template_kwargs"),
    "a message": ({}, "chat.messages[0].tool_calls", "messages[0].tool_calls"),
}


@pytest.mark.parametrize("name", RENAMED)
async def test_a_coordinators_error_names_the_clients_field(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, name: str
) -> None:
    fields, field, param = RENAMED[name]
    coordinator.error = InvalidArgument(field, "can't be enforced")
    response = await post(http, tools=TOOLS, **fields)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, param)
    assert error["message"] == f"{param} can't be enforced"


CALL = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
CALLED = {"role": "assistant", "content": None, "tool_calls": [CALL]}


async def test_calls_and_results_reach_the_coordinator(http: httpx2.AsyncClient, coordinator: FakeCoordinator) -> None:
    result = {"role": "tool", "tool_call_id": "call_1", "name": "add", "content": [{"type": "text", "text": "2"}]}
    function = {**CALL["function"], "parsed_arguments": {"a": 1}}
    replayed = {
        **CALLED,
        "tool_calls": [{**CALL, "index": 0, "function": function}],
        "refusal": None,
        "annotations": None,
        "name": "x",
    }
    assert (await post(http, messages=[ASKED, replayed, result])).status_code == 200
    call = generation_pb2.ToolCall(id="call_1", name="add", arguments='{"a": 1}')
    assert list(coordinator.asked[0].chat.messages) == [
        generation_pb2.ChatMessage(**ASKED),
        generation_pb2.ChatMessage(role="assistant", tool_calls=[call]),
        generation_pb2.ChatMessage(role="tool", content="2", tool_call_id="call_1", name="add"),
    ]


@pytest.mark.parametrize(("arguments", "expected"), [(None, ""), ({"a": "é"}, '{"a": "é"}'), ("{", "{")])
async def test_calls_and_results_may_leave_out_what_they_do_not_have(
    http: httpx2.AsyncClient, coordinator: FakeCoordinator, arguments: Any, expected: str
) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": arguments}}
    messages = [ASKED, {**CALLED, "tool_calls": [call]}, {"role": "tool", "content": None}]
    assert (await post(http, messages=messages)).status_code == 200
    assert list(coordinator.asked[0].chat.messages)[1:] == [
        generation_pb2.ChatMessage(
            role="assistant", tool_calls=[generation_pb2.ToolCall(name="add", arguments=expected)]
        ),
        generation_pb2.ChatMessage(role="tool"),
    ]


BAD_MESSAGES: dict[str, tuple[dict[str, Any], str]] = {
    "calls as an object": ({**CALLED, "tool_calls": CALL}, "tool_calls"),
    "a call as a text": ({**CALLED, "tool_calls": ["add"]}, "tool_calls[0]"),
    "another type": ({**CALLED, "tool_calls": [CALL, {**CALL, "type": "custom"}]}, "tool_calls[1]"),
    "an id of a call as a number": ({**CALLED, "tool_calls": [{**CALL, "id": 1}]}, "tool_calls[0].id"),
    "no function": ({**CALLED, "tool_calls": [{"id": "1"}]}, "tool_calls[0].function"),
    "an unknown key": ({**CALLED, "tool_calls": [{**CALL, "input": "x"}]}, "tool_calls[0].input"),
    "arguments as a list": (
        {**CALLED, "tool_calls": [{**CALL, "function": {"name": "add", "arguments": []}}]}, "tool_calls[0].function.arguments",
    ),
    "an id as a number": ({"role": "tool", "content": "2", "tool_call_id": 1}, "tool_call_id"),
    "a user without content": ({"role": "user"}, "content"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_MESSAGES)
async def test_a_bad_message_is_refused_by_its_place(http: httpx2.AsyncClient, name: str) -> None:
    message, key = BAD_MESSAGES[name]
    error = (await post(http, messages=[ASKED, message])).json()["error"]
    assert error["param"] == f"messages[1].{key}"


def call_round(text: str, *calls: generation_pb2.ToolCallDelta) -> generation_pb2.GenerateResponse:
    origins = [generation_pb2.ORIGIN_TARGET]
    return generation_pb2.GenerateResponse(
        token_ids=[1], text=text, text_lengths=[len(text)], origins=origins, tool_calls=calls
    )


def grown(index: int, arguments: str) -> generation_pb2.ToolCallDelta:
    return generation_pb2.ToolCallDelta(index=index, arguments=arguments)


def opened(index: int) -> generation_pb2.ToolCallDelta:
    return generation_pb2.ToolCallDelta(index=index, id=f"call_{index}", name="add")


ROUNDS = [
    call_round("", opened(0), grown(0, '{"a": ')),
    call_round("", grown(0, "1}"), opened(1), grown(1, "{")),
    call_round("", grown(1, "}")),
]
BOTH = [
    {"id": "call_0", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}},
    {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": "{}"}},
]


@pytest.fixture
def calling(coordinator: FakeCoordinator) -> FakeCoordinator:
    coordinator.rounds, coordinator.reason = ROUNDS, generation_pb2.FINISH_REASON_TOOL_CALLS
    return coordinator


@pytest.mark.parametrize("text", ["", "So: "])
async def test_a_whole_answer_has_its_calls(http: httpx2.AsyncClient, calling: FakeCoordinator, text: str) -> None:
    calling.rounds = [*([call_round(text)] if text else []), *ROUNDS]
    for choice in (await post(http, tools=TOOLS, n=2)).json()["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        assert choice["message"] == {
            "role": "assistant",
            "content": text or None,
            "refusal": None,
            "tool_calls": BOTH,
        }


async def test_an_answer_without_calls_has_no_key_for_them(http: httpx2.AsyncClient) -> None:
    message = (await post(http, tools=TOOLS)).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "{}", "refusal": None}


async def test_a_stream_opens_each_call_and_then_grows_its_arguments(
    http: httpx2.AsyncClient, calling: FakeCoordinator
) -> None:
    calling.rounds = [call_round("So: "), *ROUNDS]
    response = await post(http, tools=TOOLS, stream=True, trace=True)
    events = [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n\n")[:-2]]
    choices = [each["choices"][0] for each in events]
    assert [each["delta"] for each in choices] == [
        {"role": "assistant", "content": ""},
        {"content": "So: "},
        {"tool_calls": [{"index": 0, "id": "call_0", "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"a": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]},
        {"tool_calls": [{"index": 1, "id": "call_1", "type": "function", "function": {"name": "add", "arguments": ""}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "{"}}]},
        {"tool_calls": [{"index": 1, "function": {"arguments": "}"}}]},
        {},
    ]  # fmt: skip
    assert [each["finish_reason"] for each in choices] == [None] * 8 + ["tool_calls"]
    # Each round's trace comes once, and the figures at the end.
    assert ["paceline" in each for each in choices] == [False, True, True, False, True, False, False, True, False]
    assert ["metrics" in each for each in events] == [False] * 8 + [True]


def test_the_reason_comes_behind_the_last_call() -> None:
    calls = [ToolCallDelta(0, "call_0", "add"), ToolCallDelta(0, arguments="{}")]
    steps = Items().read(Chunk("", [], "", tool_calls=calls))
    chunks = Chat().deltas(0, "", steps, None, "tool_calls")
    assert [each["finish_reason"] for each in chunks] == [None, None, "tool_calls"]
    assert chunks[-1]["delta"] == {}


async def test_openais_stream_helper_reads_calls(http: httpx2.AsyncClient, calling: FakeCoordinator) -> None:
    calling.rounds = [call_round("", *(delta for each in ROUNDS for delta in each.tool_calls))]
    async with openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="none", http_client=http) as client:
        given: Any = {"model": "tiny", "messages": [ASKED], "tools": TOOLS}
        async with client.chat.completions.stream(**given) as stream:
            choice = (await stream.get_final_completion()).choices[0]
    assert choice.finish_reason == "tool_calls"
    calls = choice.message.tool_calls or []
    assert [(each.id, each.function.arguments) for each in calls] == [("call_0", '{"a": 1}'), ("call_1", "{}")]


class Weather(pydantic.BaseModel):
    """Looks up the weather."""

    model_config = pydantic.ConfigDict(extra="forbid")
    city: str = pydantic.Field(max_length=12)
    days: int = pydantic.Field(ge=1, le=7)


@pytest.fixture(scope="session")
def pair_client(start_gateway: Any, embedded_pair: Any) -> openai.OpenAI:
    """The models of `paceline up`."""
    gateway_service: RunningGateway = start_gateway(embedded_pair)
    return openai.OpenAI(base_url=f"{gateway_service.url}/v1", api_key="none", max_retries=0)


QUESTION: Any = {"role": "user", "content": "What is the weather in Paris?"}
WEATHER: Any = openai.pydantic_function_tool(Weather)
CHOICES: dict[str, Any] = {
    "required": "required",
    "named": tool("Weather"),
    "allowed": allowed("required", tool("Weather")),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_model_calls_a_function_and_reads_its_result(pair_client: openai.OpenAI, name: str) -> None:
    asked: Any = {
        "model": "smollm2-135m", "tools": [tool("stay"), WEATHER], "tool_choice": CHOICES[name], "max_tokens": 120,
        "temperature": 0, "parallel_tool_calls": False, "extra_headers": {"x-request-id": "the same"},
    }  # fmt: skip
    whole = pair_client.chat.completions.create(messages=[QUESTION], **asked).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert whole.message.content is None
    [call] = whole.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "Weather" or name == "required"
    parsed = pair_client.chat.completions.parse(messages=[QUESTION], **{**asked, "tools": [WEATHER]}).choices[0].message
    assert parsed.tool_calls is not None
    assert isinstance(parsed.tool_calls[0].function.parsed_arguments, Weather)
    with pair_client.chat.completions.stream(messages=[QUESTION], **asked) as stream:
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls"
    [again] = streamed.message.tool_calls or []
    assert (again.id, again.function.name, again.function.arguments) == (
        call.id, call.function.name, call.function.arguments,
    )  # fmt: skip
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "21 degrees"}
    messages: Any = [QUESTION, whole.message, result]
    end = pair_client.chat.completions.create(messages=messages, **{**asked, "tool_choice": "none", "max_tokens": 8})
    assert end.choices[0].message.content
    assert end.choices[0].message.tool_calls is None
