"""Events of Responses and Messages, judged by the packages of OpenAI and Anthropic."""

import asyncio
import itertools
from collections.abc import AsyncGenerator, Iterable
from typing import Any, cast, get_args

import anthropic
import anthropic.types
import openai
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from hypothesis import given, settings
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import ResponseStreamEvent

from gateway.dialects import dialect as dialect_module
from gateway.dialects.chat import Chat
from gateway.dialects.dialect import Dialect, EventStream
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses
from gateway.token_texts import TokenText, TokenTexts
from paceline.errors import CONTEXT_LENGTH_EXCEEDED, Excess, InvalidArgument, ResourceExhausted, Unavailable
from paceline.results import Chunk, TokenLogprobs, ToolCallDelta
from tests.gateway.scripted import SERVING, ScriptedGeneration, chunk, end, read_event, stream, whole
from tests.gateway.test_items import answers

RESPONSES, MESSAGES = Responses(), Messages()
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
INPUT: dict[str, Any] = {
    "input": "Add.",
    "tools": [
        {"type": "function", "name": "add", "parameters": PARAMETERS},
        {
            "type": "namespace",
            "name": "math",
            "description": "",
            "tools": [{"type": "function", "name": "sum", "parameters": PARAMETERS}],
        },
        {"type": "custom", "name": "patch"},
    ],
}
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Add."}],
    "max_tokens": 9,
    "tools": [{"name": "add", "input_schema": PARAMETERS}],
}


def classes_by_type(union: Any) -> dict[str, Any]:
    """Validation against the union itself names every class in an error."""
    classes = get_args(get_args(union)[0])
    return {get_args(each.model_fields["type"].annotation)[0]: each for each in classes}


OPENAI_EVENTS = classes_by_type(ResponseStreamEvent)
ANTHROPIC_EVENTS = classes_by_type(anthropic.types.RawMessageStreamEvent)


def openai_snapshot(events: list[dict[str, Any]]) -> Any:
    """Validates events, and returns what OpenAI's package makes of them."""
    state = ResponseStreamState[Any](input_tools=openai.omit, text_format=openai.omit)
    for event in events:
        state.handle_event(OPENAI_EVENTS[event["type"]].model_validate(event, strict=True))
    return state._completed_response


def anthropic_snapshot(events: list[dict[str, Any]]) -> Any:
    """Validates events, and returns what Anthropic's package makes of them."""
    snapshot, buffers = None, dict[int, bytes]()
    for event in events:
        if event["type"] not in ("ping", "error"):
            made = ANTHROPIC_EVENTS[event["type"]].model_validate(event, strict=True)
            snapshot = accumulate_event(event=made, current_snapshot=snapshot, json_bufs=buffers)
    return snapshot


@settings(deadline=None)
@given(answers())
def test_streamed_items_are_the_whole_response(rounds: list[Chunk]) -> None:
    events = asyncio.run(stream(RESPONSES, INPUT, rounds))
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert all(each["event"] == each["type"] for each in events)
    assert [each["type"] for each in events[:2]] == ["response.created", "response.in_progress"]
    last = events[-1]["response"]
    made = asyncio.run(whole(RESPONSES, INPUT, rounds))
    times = ("created_at", "completed_at")
    assert {k: v for k, v in made.items() if k not in times} == {k: v for k, v in last.items() if k not in times}
    assert [each["item"] for each in events if each["type"] == "response.output_item.done"] == last["output"]
    for index, item in enumerate(last["output"]):
        of_item = [each for each in events if each.get("output_index") == index]
        deltas = "".join(each["delta"] for each in of_item if each["type"].endswith(".delta"))
        text = item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"]
        assert deltas == text
        assert {each["item_id"] for each in of_item if "item_id" in each} == {item["id"]}
        assert of_item[0]["item"]["id"] == of_item[-1]["item"]["id"] == item["id"]
        dones = [each["type"] for each in of_item if each["type"].endswith(".done")]
        assert len(dones) == (2 if item["type"] == "function_call" else 3)
    snapshot = openai_snapshot(events)
    is_cut = rounds[-1].finish is not None and rounds[-1].finish.reason == "length"
    assert events[-1]["type"] == f"response.{'incomplete' if is_cut else 'completed'}"
    if not is_cut:
        assert [each.id for each in snapshot.output] == [each["id"] for each in last["output"]]
        texts = ("".join(part.text for part in each.content) for each in snapshot.output if each.type == "message")
        assert "".join(texts) == "".join(each.text for each in rounds)
    assert last["usage"] == {
        "input_tokens": 9, "output_tokens": len(rounds), "total_tokens": 9 + len(rounds),
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip


@settings(deadline=None)
@given(answers())
def test_streamed_blocks_are_the_whole_message(rounds: list[Chunk]) -> None:
    events = asyncio.run(stream(MESSAGES, ASKED, rounds))
    assert all(each["event"] == each["type"] for each in events)
    assert [events[0]["type"], *(each["type"] for each in events[-2:])] == [
        "message_start", "message_delta", "message_stop",
    ]  # fmt: skip
    start = events[0]["message"]
    assert (start["usage"]["input_tokens"], start["usage"]["cache_read_input_tokens"]) == (5, 4)
    made = asyncio.run(whole(MESSAGES, ASKED, rounds))
    snapshot = anthropic_snapshot(events)
    kinds = [each["type"] for each in made["content"]]
    assert [each.type for each in snapshot.content] == kinds
    assert kinds.count("thinking") == sum(each.get("delta", {}).get("type") == "signature_delta" for each in events)
    for block, seen in zip(made["content"], snapshot.content, strict=True):
        names = {"tool_use": ("id", "name", "input"), "thinking": ("thinking", "signature")}.get(
            block["type"], (block["type"],)
        )
        assert [block[each] for each in names] == [getattr(seen, each) for each in names]
    assert (snapshot.stop_reason, snapshot.usage.output_tokens) == (made["stop_reason"], len(rounds))
    assert made["usage"] == {
        "input_tokens": 5, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 0, "output_tokens": len(rounds),
    }  # fmt: skip


@settings(deadline=None)
@given(answers())
def test_one_block_is_open_at_a_time(rounds: list[Chunk]) -> None:
    is_open: int | None = None
    for event in asyncio.run(stream(MESSAGES, ASKED, rounds)):
        match event["type"]:
            case "content_block_start":
                assert is_open is None
                is_open = event["index"]
            case "content_block_delta":
                kind = event["delta"]["type"]
                assert event["index"] == is_open, kind
            case "content_block_stop":
                assert event["index"] == is_open
                is_open = None
    assert is_open is None


CALLS = [
    chunk("I add.", reasoning="Hm."),
    chunk(calls=[ToolCallDelta(0, "call_ab", "add"), ToolCallDelta(0, arguments='{"a":')]),
    chunk(calls=[ToolCallDelta(0, arguments=" 1}")]),
    chunk(calls=[ToolCallDelta(1, "call_cd", "math__sum"), ToolCallDelta(1, arguments='{"a": 2}')]),
    chunk(calls=[ToolCallDelta(2, "call_ef", "patch"), ToolCallDelta(2, arguments='{"input": "a\\n\\"b"}')]),
    chunk(finish=end("tool_calls")),
]


async def test_a_call_names_its_namespace_apart_and_a_custom_tool_gets_text() -> None:
    events = await stream(RESPONSES, INPUT, CALLS)
    output = events[-1]["response"]["output"]
    openai_snapshot(events)
    assert [each["type"] for each in output] == [
        "reasoning", "message", "function_call", "function_call", "custom_tool_call",
    ]  # fmt: skip
    assert [(each["name"], each.get("namespace")) for each in output[2:]] == [
        ("add", None), ("sum", "math"), ("patch", None),
    ]  # fmt: skip
    assert [each["call_id"] for each in output[2:]] == ["call_ab", "call_cd", "call_ef"]
    assert output[4]["input"] == 'a\n"b'
    inputs = [each["delta"] for each in events if each["type"] == "response.custom_tool_call_input.delta"]
    assert inputs == ['a\n"b']


async def test_a_custom_tools_grammar_is_named_as_it_cannot_hold() -> None:
    grammar = {
        "type": "custom",
        "name": "patch",
        "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
    }
    for tool, unenforced in ((grammar, ["tools[0].format"]), ({**grammar, "format": {"type": "text"}}, None)):
        made = await whole(RESPONSES, {"input": "Patch.", "tools": [tool]}, CALLS[-1:])
        assert made["paceline"].get("unenforced") == unenforced


async def test_reasoning_goes_out_as_encrypted_content_and_is_read_back() -> None:
    include = {"include": ["reasoning.encrypted_content"]}
    [reasoning, *_] = (await whole(RESPONSES, {**INPUT, **include}, CALLS))["output"]
    assert "encrypted_content" not in (await whole(RESPONSES, INPUT, CALLS))["output"][0]
    for given_back in (reasoning, {**reasoning, "content": None}):
        items = [{"role": "user", "content": "x"}, given_back, {"role": "assistant", "content": "y"}]
        [_, answer] = parsed(RESPONSES, {"input": items})
        assert answer == {"role": "assistant", "content": "y", "reasoning": "Hm."}
    of_another = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"}
    assert parsed(RESPONSES, {"input": [{"role": "user", "content": "x"}, of_another]}) == [
        {"role": "user", "content": "x"}
    ]


@pytest.mark.parametrize(
    ("finish", "told"),
    [
        (end(), ("end_turn", None)),
        (end("tool_calls"), ("tool_use", None)),
        (end("length"), ("max_tokens", None)),
        (end("length", context_full=True), ("model_context_window_exceeded", None)),
        (end(matched_stop="###"), ("stop_sequence", "###")),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
async def test_a_message_says_why_it_stopped(finish: Any, told: tuple[str, str | None]) -> None:
    rounds = [chunk("x"), chunk(finish=finish)]
    events, made = await stream(MESSAGES, ASKED, rounds), await whole(MESSAGES, ASKED, rounds)
    assert (made["stop_reason"], made["stop_sequence"]) == told
    assert events[-2]["delta"] == {"stop_reason": told[0], "stop_sequence": told[1]}


async def test_a_cut_response_is_incomplete_and_so_is_its_last_item() -> None:
    rounds = [chunk("x", [ToolCallDelta(0, "call_ab", "add")]), chunk(finish=end("length"))]
    last = (await stream(RESPONSES, INPUT, rounds))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "incomplete")
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [each["status"] for each in last["response"]["output"]] == ["completed", "incomplete"]


TOO_LONG = InvalidArgument.of_count("prompt", Excess(90, 64, "tokens"), CONTEXT_LENGTH_EXCEEDED)


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (Unavailable("gone"), "server_error", "overloaded_error"),
        (ResourceExhausted("full"), "rate_limit_exceeded", "rate_limit_error"),
        (TOO_LONG, "context_length_exceeded", "invalid_request_error"),
        (ValueError("a secret"), "server_error", "api_error"),
    ],
)
async def test_a_stream_that_fails_says_so_once_at_its_end(error: Exception, code: str, kind: str) -> None:
    rounds = [*CALLS[:2], error]
    events = await stream(RESPONSES, INPUT, rounds)
    assert [each["type"] for each in events].count("response.failed") == 1
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", code)
    assert [each["type"] for each in failed["output"]] == ["reasoning", "message"]
    last = (await stream(MESSAGES, ASKED, rounds))[-1]
    assert (last["event"], last["error"]["type"]) == ("error", kind)
    assert "secret" not in str(events[-1]) + str(last)
    if error is TOO_LONG:
        assert last["error"]["message"] == "prompt is too long: 90 tokens > 64 maximum"


@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES], ids=["responses", "messages"])
async def test_an_error_before_the_stream_is_raised(dialect: Dialect) -> None:
    with pytest.raises(Unavailable):
        await stream(dialect, INPUT if dialect is RESPONSES else ASKED, [Unavailable("gone")])


async def test_a_long_silence_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialect_module, "OPEN_AFTER_S", 0.01)
    monkeypatch.setattr(dialect_module, "BEAT_S", 0.01)
    bodies: dict[Dialect, dict[str, Any]] = {Chat(): {"messages": ASKED["messages"]}, RESPONSES: INPUT, MESSAGES: ASKED}
    for dialect, body in bodies.items():
        sent = await silent_stream(dialect, body)
        comments = [each for each in sent if each.startswith(":")]
        events = [read_event(each) for each in sent if not each.startswith(":") and "[DONE]" not in each]
        kinds = [each.get("type") for each in events]
        if dialect is RESPONSES:
            assert kinds[:4] == ["response.created", *["response.in_progress"] * 3]
            assert [each["sequence_number"] for each in events] == list(range(len(events)))
            assert openai_snapshot(events).output[0].content[0].text == "x"
            assert kinds.count("response.created") == 1
        elif dialect is MESSAGES:
            assert kinds[:3] == ["ping"] * 3
            assert kinds.count("message_start") == 1
            assert anthropic_snapshot(events).content[0].text == "x"
        assert bool(comments) == isinstance(dialect, Chat)


async def test_a_beat_does_not_overtake_the_first_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities wait for the texts of tokens; beats do not."""
    monkeypatch.setattr(dialect_module, "OPEN_AFTER_S", 0.01)
    monkeypatch.setattr(dialect_module, "BEAT_S", 0.01)

    class Slow(ScriptedGeneration):
        async def load_texts(self, ids: Iterable[int]) -> None:
            await asyncio.sleep(0.1)

    asked = RESPONSES.parse({**INPUT, "top_logprobs": 1, "stream": True}, SERVING)
    logprobs = [TokenLogprobs(-1.0, [1], [-1.0])]
    generation = Slow(asked, [chunk("x", logprobs=logprobs), chunk(logprobs=logprobs, finish=end())])
    generation.texts = cast(TokenTexts, {1: TokenText("x", b"x")})
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await EventStream(RESPONSES.reply(generation), RESPONSES, {}, send).run()
    events = [read_event(each) for each in b"".join(sent).decode().split("\n\n") if each]
    kinds = [each["type"] for each in events]
    assert (kinds.index("response.created"), kinds.count("response.created")) == (0, 1)
    assert kinds[-1] == "response.completed"
    [delta] = [each for each in events if each["type"] == "response.output_text.delta"]
    assert [each["token"] for each in delta["logprobs"]] == ["x"]
    openai_snapshot(events)


def cut(texts: list[str], ends: tuple[int, ...]) -> list[Chunk]:
    """Rounds of one answer, a token for each text, that end at `ends`."""
    rounds = []
    for start, stop in zip((0, *ends), ends, strict=False):
        some = texts[start:stop]
        scores = [TokenLogprobs(float(-at), [1], [-1.0]) for at in range(start, stop)]
        finish = end() if stop == len(texts) else None
        text = "".join(some)
        rounds.append(Chunk(text, [1] * len(some), "T" * len(some), [*map(len, some)], logprobs=scores, finish=finish))
    return rounds


@pytest.mark.parametrize("texts", [["", "a", "", "b", ""], ["a", "b", "", ""], ["a", "", "bc"]], ids=str)
async def test_which_tokens_have_logprobs_does_not_depend_on_where_rounds_end(texts: list[str]) -> None:
    """Those up to the last with text: the end's token has none, whether or not it comes with another."""
    asked = RESPONSES.parse({**INPUT, "top_logprobs": 1}, SERVING)
    last = max(at for at, text in enumerate(texts) if text)
    inner = range(1, len(texts))
    for ends in itertools.chain.from_iterable(itertools.combinations(inner, num) for num in range(len(texts))):
        generation = ScriptedGeneration(asked, cut(texts, (*ends, len(texts))))
        generation.texts = cast(TokenTexts, {1: TokenText("x", b"x")})
        generation.load_texts = no_texts  # type: ignore[method-assign]
        body = await RESPONSES.reply(generation).whole()
        [part] = body["output"][0]["content"]
        assert [each["logprob"] for each in part["logprobs"]] == [float(-at) for at in range(last + 1)], ends


async def no_texts(ids: Iterable[int]) -> None:
    """All are there."""


async def silent_stream(dialect: Dialect, body: dict[str, Any]) -> list[str]:
    """Returns the events of an answer that comes after some beats."""
    sent: list[bytes] = []
    has_beaten = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))
        if len(sent) > 5:
            has_beaten.set()

    class Silent(ScriptedGeneration):
        async def rounds(self) -> AsyncGenerator[tuple[int, Chunk], None]:
            await has_beaten.wait()
            async for each in super().rounds():
                yield each

    asked = dialect.parse({**body, "stream": True}, SERVING)
    reply = dialect.reply(Silent(asked, [chunk("x"), chunk(finish=end())]))
    await asyncio.wait_for(EventStream(reply, dialect, {}, send).run(), 20)
    return [each for each in b"".join(sent).decode().split("\n\n") if each]


def parsed(dialect: Dialect, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages that a coordinator gets."""
    [prompt] = dialect.parse(body, SERVING).prompts
    return prompt  # type: ignore[return-value]
