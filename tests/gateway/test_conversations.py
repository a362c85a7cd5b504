"""What Responses and Messages make of their input: the messages, tools and options that a coordinator gets."""

import json
from dataclasses import replace
from typing import Any

import pytest

from gateway.dialects.dialect import Dialect
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses
from gateway.errors import HttpError
from gateway.requests import HttpRequest
from paceline.results import TokenizerInfo
from tests.gateway.scripted import SERVING

RESPONSES, MESSAGES = Responses(), Messages()
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}}
USER = {"role": "user", "content": "Hi."}
CALL = {"id": "call_1", "name": "add", "arguments": '{"a": 1}'}


def ask(dialect: Dialect, body: dict[str, Any], chat_template: str = "") -> HttpRequest:
    asked = {"input": "Hi."} if dialect is RESPONSES else {"messages": [USER], "max_tokens": 9}
    deployment = replace(SERVING.deployment, tokenizer=TokenizerInfo(chat_template=chat_template))
    return dialect.parse({**asked, **body}, replace(SERVING, deployment=deployment))


def messages_of(dialect: Dialect, body: dict[str, Any]) -> list[Any]:
    [prompt] = ask(dialect, body).prompts
    return list(prompt)


INPUTS: dict[str, tuple[Any, list[Any]]] = {
    "a text": ("Hi.", [USER]),
    "messages with and without a type": (
        [{"role": "user", "content": "Hi."}, {"type": "message", "role": "developer", "content": "Be kind."}],
        [USER, {"role": "developer", "content": "Be kind."}],
    ),
    "parts": (
        [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"}, {"type": "input_text", "text": "."}]},
            {
                "type": "message", "id": "msg_1", "status": "completed", "role": "assistant",
                "content": [
                    {"type": "output_text", "text": "No", "annotations": [], "logprobs": []},
                    {"type": "refusal", "refusal": "."},
                ],
            },
        ],
        [USER, {"role": "assistant", "content": "No."}],
    ),
    "an answer's items": (
        [
            {"role": "user", "content": "Hi."},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
            {"role": "assistant", "content": "I add."},
            {"type": "function_call", "id": "fc", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "call_1", "output": "2"},
            {"role": "assistant", "content": "2"},
        ],
        [
            USER, {"role": "assistant", "content": "I add.", "reasoning": "Hm.", "tool_calls": [CALL]},
            {"role": "tool", "content": "2", "tool_call_id": "call_1"}, {"role": "assistant", "content": "2"},
        ],
    ),
    "a reference to reasoning, which is lost": (
        [{"role": "user", "content": "Hi."}, {"type": "item_reference", "id": "rs_1"}],
        [USER],
    ),
    "two calls, and text after them": (
        [
            {"type": "function_call", "call_id": "call_1", "name": "add", "arguments": '{"a": 1}'},
            {"type": "function_call", "call_id": "call_2", "namespace": "math", "name": "sum", "arguments": "{}"},
            {"role": "assistant", "content": "Done."},
            {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "3"}]},
        ],
        [
            {
                "role": "assistant", "content": "",
                "tool_calls": [CALL, {"id": "call_2", "name": "math__sum", "arguments": "{}"}],
            },
            {"role": "assistant", "content": "Done."},
            {"role": "tool", "content": "3", "tool_call_id": "call_2"},
        ],
    ),
    "a custom tool": (
        [
            {"type": "custom_tool_call", "call_id": "call_1", "name": "patch", "input": 'a"b'},
            {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ok"},
        ],
        [
            {"role": "assistant", "content": "", "tool_calls": [
                {"id": "call_1", "name": "patch", "arguments": '{"input": "a\\"b"}'},
            ]},
            {"role": "tool", "content": "ok", "tool_call_id": "call_1"},
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), INPUTS.values(), ids=INPUTS)
def test_input_becomes_messages(given: Any, expected: list[Any]) -> None:
    assert messages_of(RESPONSES, {"input": given}) == expected
    instructed = [{"role": "system", "content": "Be kind."}, *expected]
    assert messages_of(RESPONSES, {"input": given, "instructions": "Be kind."}) == instructed


def result(text: str, **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": "toolu_1", "content": text, **more}


def text(words: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": words, **more}


TOOL_USE = {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
TURNS: dict[str, tuple[list[Any], list[Any]]] = {
    "text and blocks": (
        [{"role": "user", "content": [text("Hi", cache_control={"type": "ephemeral"}), text(".")]}],
        [USER],
    ),
    "a call and its result, then text": (
        [
            {"role": "user", "content": "Hi."},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "redacted_thinking", "data": "x"}, text("I add."), TOOL_USE,
            ]},
            {"role": "user", "content": [result("2"), text("Go on."), {**result("no"), "is_error": True}]},
        ],
        [
            USER,
            {"role": "assistant", "content": "I add.", "reasoning": "Hm.", "tool_calls": [
                {"id": "toolu_1", "name": "add", "arguments": '{"a": 1}'},
            ]},
            {"role": "tool", "content": "2", "tool_call_id": "toolu_1"},
            {"role": "tool", "content": "Error: no", "tool_call_id": "toolu_1"},
            {"role": "user", "content": "Go on."},
        ],
    ),
    "a system message in mid-chat keeps its place": (
        [
            {"role": "user", "content": "Hi."}, {"role": "system", "content": [text("Be kind.")]},
            {"role": "assistant", "content": "Hi!"}, {"role": "assistant", "content": "More?"},
            {"role": "user", "content": "Hi."},
        ],
        [
            USER, {"role": "system", "content": "Be kind."}, {"role": "assistant", "content": "Hi!"},
            {"role": "assistant", "content": "More?"}, USER,
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), TURNS.values(), ids=TURNS)
def test_turns_become_messages(given: list[Any], expected: list[Any]) -> None:
    assert messages_of(MESSAGES, {"messages": given}) == expected


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("Be kind.", "Be kind."),
        ([text("Be kind."), text("Be brief.", cache_control={})], "Be kind.\n\nBe brief."),
        ([text("x-anthropic-billing-header: cc_version=2.1.332.a1; cch=4f9d1;"), text("Be kind.")], "Be kind."),
        ([text("x-anthropic-billing-header: cch=0;\nBe kind.")], "Be kind."),
        ("", None),
    ],
)
def test_system_blocks_are_one_message_without_what_changes_each_time(system: Any, expected: str | None) -> None:
    before = [] if expected is None else [{"role": "system", "content": expected}]
    assert messages_of(MESSAGES, {"system": system}) == [*before, USER]


def function(name: str, **more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **more}}


def test_tools_are_offered_under_one_name_each_and_hosted_ones_left_out() -> None:
    tools = [
        {"type": "web_search", "external_web_access": True},
        {"type": "function", "name": "add", "parameters": PARAMETERS, "strict": False, "description": None},
        {"type": "namespace", "name": "math", "description": "", "tools": [
            {"type": "function", "name": "sum", "parameters": PARAMETERS},
        ]},
        {"type": "web_search_preview_2025_03_11"},
    ]  # fmt: skip
    asked = ask(RESPONSES, {"tools": tools})
    assert asked.tools.tools == [function("add", strict=False), function("math__sum")]
    assert list(asked.tools.left_out) == ["web_search", "web_search_preview_2025_03_11"]
    assert asked.names["tools[1].function"] == "tools[2].tools[0]"
    tools = [{"type": "web_search_20250305", "name": "web_search"}, {"name": "add", "input_schema": PARAMETERS}]
    asked = ask(MESSAGES, {"tools": tools})
    assert asked.tools.tools == [function("add")]
    assert list(asked.tools.left_out) == ["web_search_20250305"]
    assert asked.names["tools[0].function.parameters"] == "tools[1].input_schema"


RESPONSES_TOOLS = [
    {"type": "function", "name": "add", "parameters": PARAMETERS},
    {"type": "namespace", "name": "math", "tools": [{"type": "function", "name": "sum", "parameters": PARAMETERS}]},
]
CHOICES: list[tuple[Dialect, Any, tuple[str, bool]]] = [
    (RESPONSES, None, ("auto", True)),
    (RESPONSES, "required", ("required", True)),
    (RESPONSES, {"type": "function", "name": "add"}, ("add", True)),
    (RESPONSES, {"type": "function", "name": "sum", "namespace": "math"}, ("math__sum", True)),
    (MESSAGES, None, ("auto", True)),
    (MESSAGES, {"type": "any"}, ("required", True)),
    (MESSAGES, {"type": "none"}, ("none", True)),
    (MESSAGES, {"type": "tool", "name": "add"}, ("add", True)),
    (MESSAGES, {"type": "auto", "disable_parallel_tool_use": True}, ("auto", False)),
]


@pytest.mark.parametrize(("dialect", "choice", "expected"), CHOICES)
def test_choices_of_tools(dialect: Dialect, choice: Any, expected: tuple[str, bool]) -> None:
    tools = RESPONSES_TOOLS if dialect is RESPONSES else [{"name": "add", "input_schema": PARAMETERS}]
    asked = ask(dialect, {"tools": tools, "tool_choice": choice}).tools
    assert (asked.choice, asked.parallel) == expected


@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES])
def test_a_default_choice_is_for_requests_with_tools(dialect: Dialect) -> None:
    serving = replace(SERVING, tool_choice_default="required")
    body: dict[str, Any] = {"input": "Hi."} if dialect is RESPONSES else {"messages": [USER]}
    tools = RESPONSES_TOOLS[:1] if dialect is RESPONSES else [{"name": "add", "input_schema": PARAMETERS}]
    assert dialect.parse(body, serving).tools.tools == []
    assert dialect.parse({**body, "tools": tools}, serving).tools.choice == "required"
    assert dialect.parse({**body, "tools": tools}, SERVING).tools.choice == "auto"


def test_allowed_tools_alone_are_offered() -> None:
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "add"}]}
    asked = ask(RESPONSES, {"tools": RESPONSES_TOOLS[::-1], "tool_choice": allowed})
    assert (asked.tools.tools, asked.tools.choice) == ([function("add")], "required")
    assert asked.names["tools[0].function"] == "tools[1]"


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (RESPONSES, {"text": {"format": {"type": "json_schema", "name": "x", "schema": PARAMETERS, "strict": True}}}),
        (MESSAGES, {"output_config": {"format": {"type": "json_schema", "schema": PARAMETERS}}}),
    ],
)
def test_a_format_is_a_schema(dialect: Dialect, body: dict[str, Any]) -> None:
    found = ask(dialect, body).format
    assert found is not None
    assert json.loads(found.json_schema) == PARAMETERS
    assert found.strict is (dialect is RESPONSES)


@pytest.mark.parametrize(
    ("dialect", "body", "option"),
    [
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, {"reasoning_effort": "high"}),
        (RESPONSES, {"reasoning": {"effort": "of another kind"}}, None),
        (
            MESSAGES,
            {"output_config": {"effort": "high"}, "thinking": {"type": "adaptive"}},
            {"reasoning_effort": "high"},
        ),
        (MESSAGES, {"thinking": {"type": "disabled"}}, {"reasoning_effort": "none"}),
    ],
)
def test_effort_reaches_a_template_that_knows_it(dialect: Dialect, body: dict[str, Any], option: Any) -> None:
    assert ask(dialect, body, chat_template="{{ reasoning_effort }}").template_options == option
    assert ask(dialect, body).template_options is None


@pytest.mark.parametrize(
    ("thinking", "option"),
    [
        ("enabled", {"enable_thinking": True}),
        ("adaptive", {"enable_thinking": True}),
        ("disabled", {"enable_thinking": False}),
    ],
)
def test_thinking_is_switched_where_a_template_can(thinking: str, option: dict[str, bool]) -> None:
    body = {"thinking": {"type": thinking}}
    assert ask(MESSAGES, body, chat_template="{{ enable_thinking }}").template_options == option
    assert ask(MESSAGES, body, chat_template="{{ messages }}").template_options is None


def test_limits_and_stops() -> None:
    asked = ask(MESSAGES, {"max_tokens": 32000, "stop_sequences": ["###"]})
    assert (asked.sampling.max_tokens, asked.sampling.stop) == (32000, ("###",))
    assert ask(MESSAGES, {"max_tokens": None}).sampling.max_tokens == 64
    assert ask(RESPONSES, {"max_output_tokens": 7}).sampling.max_tokens == 7
    assert ask(RESPONSES, {}).sampling.max_tokens == 64


REFUSED: list[tuple[Dialect, dict[str, Any], str]] = [
    (RESPONSES, {"input": []}, "input"),
    (RESPONSES, {"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0]"),
    (RESPONSES, {"input": [{"type": "additional_tools", "tools": []}]}, "input[0]"),
    (RESPONSES, {"input": [{"type": "function_call", "name": "add"}]}, "input[0]"),
    (RESPONSES, {"input": [{"type": "message", "role": "tool", "content": "x"}]}, "input[0].role"),
    (RESPONSES, {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0]"),
    (RESPONSES, {"previous_response_id": "resp_1"}, "previous_response_id"),
    (RESPONSES, {"background": True}, "background"),
    (RESPONSES, {"text": {"format": {"type": "xml"}}}, "text.format"),
    (RESPONSES, {"text": {"format": {"type": "json_schema", "schema": 3}}}, "text.format.schema"),
    (RESPONSES, {"tools": [{"type": "teapot"}]}, "tools[0].type"),
    (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    (RESPONSES, {"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    (RESPONSES, {"tools": [{"type": "function", "name": "a", "color": 1}]}, "tools[0].color"),
    (RESPONSES, {"wish": 1}, "wish"),
    (RESPONSES, {"metadata": json.loads('{"a":' * 300 + "1" + "}" * 300)}, "metadata"),
    (RESPONSES, {"truncation": "maybe"}, "truncation"),
    (RESPONSES, {"truncation": ["auto"]}, "truncation"),
    (RESPONSES, {"reasoning": {"summary": "long"}}, "reasoning.summary"),
    (RESPONSES, {"reasoning": {"effort": 3}}, "reasoning.effort"),
    (RESPONSES, {"text": {"verbosity": 3}}, "text.verbosity"),
    (RESPONSES, {"metadata": "x"}, "metadata"),
    (RESPONSES, {"user": 3}, "user"),
    (RESPONSES, {"safety_identifier": {}}, "safety_identifier"),
    (MESSAGES, {"messages": []}, "messages"),
    (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "messages[0]"),
    (
        MESSAGES,
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages[0].content[0]",
    ),
    (MESSAGES, {"messages": [{"role": "user", "content": [result("x", wish=1)]}]}, "messages[0].content[0].wish"),
    (MESSAGES, {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}}, "tool_choice"),
    (MESSAGES, {"tool_choice": {"type": "some"}}, "tool_choice.type"),
    (MESSAGES, {"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    (MESSAGES, {"n": 2}, "n"),
]


@pytest.mark.parametrize(("dialect", "body", "field"), REFUSED)
def test_what_cannot_be_taken_is_refused_by_name(dialect: Dialect, body: dict[str, Any], field: str) -> None:
    with pytest.raises(HttpError) as caught:
        ask(dialect, body)
    assert (caught.value.status, caught.value.field) == (400, field)
    assert field.split("[")[0].split(".")[0] in caught.value.message
