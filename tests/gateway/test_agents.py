"""Responses and Messages by OpenAI's and Anthropic's packages, in front of real services."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import anthropic
import httpx2
import openai
import pytest

from gateway.app import make_app
from gateway.config import GatewaySettings
from gateway.router import Coordinators
from paceline.errors import ResourceExhausted
from paceline.keys import make_key
from paceline.v1 import generation_pb2
from tests.gateway.conftest import RunningGateway, StartGateway
from tests.gateway.fake_coordinator import FakeCoordinator
from tests.services import Trio

ASKED: Any = [{"role": "user", "content": "t1 t2 t3"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 22]}}, "required": ["a"], "additionalProperties": False}
TOOL: Any = {"type": "function", "name": "add", "parameters": SCHEMA}
ANTHROPIC_TOOL: Any = {"name": "add", "input_schema": SCHEMA}
GREEDY: Any = {"extra_body": {"temperature": 0}}


@pytest.fixture(scope="session")
def claude(gateway_service: RunningGateway) -> Iterator[anthropic.Anthropic]:
    """Anthropic's own package."""
    with anthropic.Anthropic(base_url=gateway_service.url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="session")
def real_claude(real_gateway: RunningGateway) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=real_gateway.url, api_key="none", max_retries=0) as client:
        yield client


def test_the_same_text_comes_from_every_api(client: openai.OpenAI, claude: anthropic.Anthropic) -> None:
    chat = client.chat.completions.create(model="dummy:tiny", messages=ASKED, max_tokens=9, temperature=0)
    text = chat.choices[0].message.content
    response = client.responses.create(model="dummy:tiny", input=ASKED, max_output_tokens=9, temperature=0)
    assert (response.output_text, response.status) == (text, "incomplete")
    message = claude.messages.create(model="dummy:tiny", messages=ASKED, max_tokens=9, **GREEDY)
    assert [each.text for each in message.content if each.type == "text"] == [text]
    assert (message.stop_reason, message.usage.output_tokens) == ("max_tokens", 9)
    with client.responses.stream(model="dummy:tiny", input=ASKED, max_output_tokens=9, temperature=0) as stream:
        assert "".join(each.delta for each in stream if each.type == "response.output_text.delta") == text
    with claude.messages.stream(model="dummy:tiny", messages=ASKED, max_tokens=9, **GREEDY) as events:
        assert "".join(events.text_stream) == text


def test_a_tool_runner_that_opens_a_thread_goes_on_without(real_claude: anthropic.Anthropic) -> None:
    asked: list[int] = []

    @anthropic.beta_tool
    def add(a: Literal[1, 22]) -> str:
        """Adds a number."""
        asked.append(a)
        return "done"

    runner = real_claude.beta.messages.tool_runner(
        model="smollm2-135m", messages=ASKED, max_tokens=200, tools=[add], max_iterations=2,
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        **GREEDY,
    )  # fmt: skip
    assert [each.stop_reason for each in runner] == ["tool_use", "tool_use"]
    assert asked
    with pytest.raises(anthropic.BadRequestError) as caught:
        real_claude.messages.create(
            model="", messages=ASKED, max_tokens=1, extra_body={"thread": {"type": "create"}}
        )  # fmt: skip
    body: Any = caught.value.body
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}


def test_a_document_of_plain_text_is_read(claude: anthropic.Anthropic) -> None:
    def text_of(content: Any) -> Any:
        asked: Any = [{"role": "user", "content": content}]
        return claude.messages.create(model="", messages=asked, max_tokens=9, **GREEDY).content

    source = {"type": "text", "media_type": "text/plain", "data": "t4 t5"}
    question = {"type": "text", "text": "t6"}
    document = {"type": "document", "title": "t1", "context": "t2", "source": source}
    assert text_of([document, question]) == text_of("t1\nt2\nt4 t5\nt6")
    parts = {"type": "document", "source": {"type": "content", "content": [{"type": "text", "text": "t4 t5"}]}}
    assert text_of([parts, question]) == text_of("t4 t5\nt6")
    with pytest.raises(anthropic.BadRequestError, match=r"messages\[0\]\.content\[0\]"):
        text_of([{"type": "document", "source": {"type": "base64", "data": "", "media_type": "application/pdf"}}])


async def test_anthropics_clients_get_anthropics_errors_on_every_path(http: httpx2.AsyncClient) -> None:
    for path, headers in (("/v1/messages/batches", {}), ("/v1/files", {"anthropic-version": "2023-06-01"})):
        response = await http.get(path, headers=headers)
        body = response.json()
        assert (response.status_code, body["type"], body["error"]["type"]) == (404, "error", "not_found_error")


def test_a_call_goes_out_and_its_result_comes_back(
    real_client: openai.OpenAI, real_claude: anthropic.Anthropic
) -> None:
    made: Any = real_client.responses.create(
        model="smollm2-135m",
        input=ASKED,
        tools=[TOOL],
        tool_choice="required",
        parallel_tool_calls=False,
        temperature=0,
    )
    call = next(each for each in made.output if each.type == "function_call")
    assert json.loads(call.arguments)["a"] in (1, 22)
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "t9"}
    follow_up: Any = [*ASKED, *(each.model_dump(exclude_none=True) for each in made.output), result]
    again = real_client.responses.create(model="smollm2-135m", input=follow_up, tools=[TOOL], max_output_tokens=3)
    assert again.usage is not None
    assert again.usage.input_tokens > made.usage.input_tokens
    message: Any = real_claude.messages.create(
        model="smollm2-135m",
        messages=ASKED,
        max_tokens=64,
        tools=[ANTHROPIC_TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        **GREEDY,
    )
    use = next(each for each in message.content if each.type == "tool_use")
    assert (message.stop_reason, use.input["a"] in (1, 22)) == ("tool_use", True)
    turns: Any = [
        *ASKED,
        {"role": "assistant", "content": message.content},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "t9"}]},
    ]
    real_claude.messages.create(model="smollm2-135m", messages=turns, max_tokens=3, tools=[ANTHROPIC_TOOL])


def test_a_schema_is_parsed_by_each_package(real_client: openai.OpenAI, real_claude: anthropic.Anthropic) -> None:
    named: Any = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA, "strict": True}}
    response = real_client.responses.create(
        model="smollm2-135m", input=ASKED, text=named, max_output_tokens=64, temperature=0
    )
    assert json.loads(response.output_text)["a"] in (1, 22)
    config: Any = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message: Any = real_claude.messages.create(
        model="smollm2-135m", messages=ASKED, max_tokens=64, output_config=config, **GREEDY
    )
    assert json.loads(message.content[0].text)["a"] in (1, 22)


def test_tokens_are_counted_as_they_are_used(real_client: openai.OpenAI, real_claude: anthropic.Anthropic) -> None:
    message = real_claude.messages.create(
        model="smollm2-135m", messages=ASKED, max_tokens=1, system="t5", tools=[ANTHROPIC_TOOL]
    )
    counted = real_claude.messages.count_tokens(
        model="smollm2-135m", messages=ASKED, system="t5", tools=[ANTHROPIC_TOOL]
    ).input_tokens
    cached = message.usage.cache_read_input_tokens or 0
    assert counted == message.usage.input_tokens + cached
    response = real_client.responses.create(
        max_output_tokens=1, model="smollm2-135m", input=ASKED, instructions="t5", tools=[TOOL]
    )
    assert response.usage is not None
    count = real_client.responses.input_tokens.count(model="smollm2-135m", input=ASKED, instructions="t5", tools=[TOOL])
    assert count.input_tokens == response.usage.input_tokens == counted


def test_the_models_are_those_of_both_apis(claude: anthropic.Anthropic, client: openai.OpenAI) -> None:
    assert [each.id for each in claude.models.list()] == [each.id for each in client.models.list()] == ["dummy:tiny"]
    model = claude.models.retrieve("dummy:tiny")
    assert (model.type, model.max_input_tokens) == (
        "model",
        client.models.retrieve("dummy:tiny").model_dump()["max_model_len"],
    )


def test_errors_are_anthropics(claude: anthropic.Anthropic, gateway_service: RunningGateway) -> None:
    with pytest.raises(anthropic.NotFoundError) as caught:
        claude.messages.create(model="claude-haiku", messages=ASKED, max_tokens=1)
    body: Any = caught.value.body
    assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
    assert caught.value.response.headers["request-id"] == body["request_id"]
    long: Any = [{"role": "user", "content": "t1 " * 600}]
    with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: 60\d tokens > 511 maximum"):
        claude.messages.create(model="dummy:tiny", messages=long, max_tokens=1)
    with pytest.raises(anthropic.BadRequestError, match="wish"):
        claude.messages.create(model="dummy:tiny", messages=ASKED, max_tokens=1, extra_body={"wish": 1})
    assert httpx2.get(f"{gateway_service.url}/v1/messages").json()["error"]["type"] == "invalid_request_error"


def test_openai_hears_of_a_prompt_that_is_too_long(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(model="dummy:tiny", input="t1 " * 600)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")


async def test_a_full_queue_and_a_missing_coordinator_have_anthropics_status(
    fake_http: httpx2.AsyncClient, coordinator: FakeCoordinator
) -> None:
    coordinator.rounds, coordinator.error = [], ResourceExhausted("full", 3)
    body = {"messages": ASKED, "max_tokens": 1, "stream": True}
    response = await fake_http.post("/v1/messages", json=body)
    assert (response.status_code, response.headers["retry-after"]) == (429, "3")
    async with alone("127.0.0.1:1") as http:
        response = await http.post("/v1/messages", json=body)
    assert (response.status_code, response.json()["error"]["type"]) == (529, "overloaded_error")


def alone(address: str, **settings: Any) -> httpx2.AsyncClient:
    app = make_app(GatewaySettings(coordinators=address, retry_timeout=0, **settings))

    class Transport(httpx2.ASGITransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            async with app.router.lifespan_context(app):
                return await super().handle_async_request(request)

    return httpx2.AsyncClient(transport=Transport(app), base_url="http://localhost")


async def test_what_was_left_out_is_named(fake_http: httpx2.AsyncClient) -> None:
    body = {"input": "t1", "tools": [{"type": "web_search"}, {"type": "mcp"}, TOOL]}
    response = await fake_http.post("/v1/responses", json=body)
    assert response.headers["x-paceline-left-out"] == "web_search, mcp"
    assert response.json()["paceline"]["left_out"] == ["web_search", "mcp"]
    async with fake_http.stream("POST", "/v1/responses", json={**body, "stream": True}) as streamed:
        assert streamed.headers["x-paceline-left-out"] == "web_search, mcp"


async def test_a_conversation_keeps_its_coordinator(
    fake_http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefixes: list[str] = []
    ranked = Coordinators.ranked

    def note(self: Coordinators, prefix: str, *more: Any) -> Any:
        prefixes.append(prefix)
        return ranked(self, prefix, *more)

    monkeypatch.setattr(Coordinators, "ranked", note)
    body = {"messages": ASKED, "max_tokens": 1}
    for header in ("x-session-affinity", "session-id", "x-claude-code-session-id"):
        await fake_http.post("/v1/messages", json=body, headers={header: "s1"})
    await fake_http.post("/v1/responses", json={"input": "t1", "prompt_cache_key": "s2"})
    assert [each for each in prefixes if each] == ["s1"] * 3 + ["s2"]


async def test_defaults_of_sampling_are_for_those_who_leave_it_out(
    coordinator: FakeCoordinator, tmp_path: Path
) -> None:
    async with alone(f"unix:{tmp_path}/coordinator.sock", sampling_defaults='{"temperature": 0, "top_k": 7}') as http:
        for body in ({}, {"temperature": 0.5}):
            await http.post("/v1/messages", json={"messages": ASKED, "max_tokens": 1, **body})
            await http.post("/v1/chat/completions", json={"messages": ASKED, **body})
    found = [(each.sampling.temperature, each.sampling.top_k) for each in coordinator.asked]
    assert found == [(0, 7), (0, 7), (0.5, 7), (0.5, 7)]


@pytest.mark.parametrize("given", ["[]", "{", '{"temperature": -1}', '{"wish": 1}', '{"n": "x"}'])
def test_bad_defaults_of_sampling_end_the_start(given: str) -> None:
    with pytest.raises(ValueError, match="sampling_defaults"):
        GatewaySettings(sampling_defaults=given)


async def test_the_model_has_other_names(coordinator: FakeCoordinator, tmp_path: Path) -> None:
    async with alone(f"unix:{tmp_path}/coordinator.sock", served_model_name="claude-*,gpt-4o") as http:
        statuses = [
            (await http.post("/v1/messages", json={"messages": ASKED, "model": name, "max_tokens": 1})).status_code
            for name in ("claude-haiku-4-5", "gpt-4o", "tiny", "gpt-4o-mini", "")
        ]
    assert statuses == [200, 200, 200, 404, 200]


async def test_a_stop_string_and_a_full_context_are_told_apart(
    fake_http: httpx2.AsyncClient, coordinator: FakeCoordinator
) -> None:
    last = generation_pb2.GenerateResponse(finish=generation_pb2.Finish(matched_stop="###"))
    coordinator.rounds = []
    coordinator.end = last
    body = {"messages": ASKED, "max_tokens": 1}
    assert (await fake_http.post("/v1/messages", json=body)).json()["stop_sequence"] == "###"
    coordinator.end = generation_pb2.GenerateResponse(finish=generation_pb2.Finish(context_full=True))
    assert (await fake_http.post("/v1/messages", json=body)).json()["stop_reason"] == "model_context_window_exceeded"


def test_an_agent_may_be_at_a_gateway_with_keys(start_gateway: StartGateway, tiny_trio: Trio, tmp_path: Path) -> None:
    key = make_key(tmp_path / "keys", "alice")
    locked = start_gateway(tiny_trio, "--api-keys", str(tmp_path / "keys"))
    for given in ({"api_key": key}, {"auth_token": key}):
        with anthropic.Anthropic(base_url=locked.url, max_retries=0, **given) as client:
            client.messages.create(model="dummy:tiny", messages=ASKED, max_tokens=1)
    stranger = anthropic.Anthropic(base_url=locked.url, api_key="wrong", max_retries=0)
    with stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model="dummy:tiny", messages=ASKED, max_tokens=1)


@pytest.mark.parametrize("flags", [(), ("--share-between-keys",)], ids=["apart", "shared"])
def test_keys_of_the_gateway_share_no_cached_prompt(
    start_gateway: StartGateway, tiny_trio: Trio, tmp_path: Path, flags: tuple[str, ...]
) -> None:
    keys = [make_key(tmp_path / "keys", name) for name in ("alice", "bob")]
    url = start_gateway(tiny_trio, "--api-keys", str(tmp_path / "keys"), *flags).url
    asked: Any = [{"role": "user", "content": f"t{7 + len(flags)} " + "t1 t2 t3 " * 50}]
    cached = []
    for key in (*keys, keys[0]):
        with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
            usage = client.messages.create(model="dummy:tiny", messages=asked, max_tokens=1).usage
        cached.append(bool(usage.cache_read_input_tokens))
    assert cached == [False, bool(flags), True]
