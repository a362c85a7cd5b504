"""Calls are found in a text however it is split, and what is no call is content."""

import hashlib
import json
import re
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.tools.call_formats import CALL_FORMATS, HERMES, CallFormat
from coordinator.tools.call_parser import CallParser, ContentDelta
from coordinator.tools.offered_tools import Tools
from paceline.results import ToolCallDelta

NAMES = ("get", "get_time")
TOOLS = Tools(tuple({"name": name} for name in NAMES))
_, MISTRAL, MISTRAL_LIST, LLAMA = CALL_FORMATS
Call = tuple[str, str]
# What is hard: braces and markers inside strings, escapes, other white space than the model's own.
ARGUMENTS = (
    "{}", '{"a": 1}', '{ "a" :\n[1, {"b": null}] }', r'{"a": "}\"]\\"}', r'{"a": "\u00e9\n"}', '{"a": "<tool_call>{"}',
    '{"a": "```", "name": "get"}', '{"a": "[TOOL_CALLS]; </tool_call>"}', '{"é🙂": "é🙂"}', '{"a": {"arguments": {}, "name": "x"}}',
)  # fmt: skip


def written(call_format: CallFormat, calls: Iterable[Call]) -> str:
    """The calls in the format's own spelling."""
    f = call_format
    texts = [f"{f.head}{name}{f.middle}{arguments}{f.tail}" for name, arguments in calls]
    return f"{f.calls_begin}{f.separator.join(texts)}{f.calls_end}"


def read(text: str | list[str], call_format: CallFormat = HERMES, tools: Tools = TOOLS) -> tuple[str, list[Call], bool]:
    """Content, calls, and whether one is whole; checks the deltas' form."""
    parser = CallParser(tools, call_format, "request")
    pieces = [text] if isinstance(text, str) else text
    deltas = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish()
    content, calls = "", []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            assert delta.text
            content += delta.text
        elif delta.id:
            assert (delta.index, delta.arguments) == (len(calls), "")
            calls.append((delta.name, ""))
        else:
            assert (delta.index, delta.name) == (len(calls) - 1, "")
            assert delta.arguments
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    return content, calls, parser.has_whole_call


CALLS = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(ARGUMENTS)), min_size=1, max_size=3)
TEXTS = st.sampled_from(
    ("", "To say so:", "a `b` <i>", "```py\nx\n```\nso", "{", '{"name": "got"}', "<tool", "[TOOL_CALLS", "[1]")
)


@given(st.sampled_from(CALL_FORMATS), TEXTS, CALLS, st.sampled_from(("", "\n", " \n\n")))
def test_calls_behind_text_are_found(call_format: CallFormat, text: str, calls: list[Call], space: str) -> None:
    assert read(text + space + written(call_format, calls) + space, call_format) == (text, calls, True)


@given(CALLS, st.sampled_from(("\n", "", " \n\n")), st.booleans())
def test_bare_calls_may_follow_one_another(calls: list[Call], separator: str, is_fenced: bool) -> None:
    """As Qwen2.5-Coder writes them: an object a line, without marks."""
    text = separator.join(f'{{"name": "{name}", "arguments": {arguments}}}' for name, arguments in calls)
    assert read(f"```json\n{text}\n```" if is_fenced else text) == ("", calls, True)


PARTS = st.sampled_from(
    (
        "<tool_call>", "</tool_call>", "<tool", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```", "``", "json", "\n", " ", "{", "}",
        "[", "]", ",", ";", ":", '"', "\\", '{"name": "get"', '"name": "get_time"', '"arguments": ', '"parameters": ', ", ", "get",
        "nope", '{"a": "}"}', '{"a": "\\"', "1", "text", "é", "x" * 9,
    )
)  # fmt: skip
# Broken ones, and whole ones among them.
MESSAGES = st.lists(
    st.one_of(
        PARTS,
        st.builds(written, st.sampled_from(CALL_FORMATS), CALLS),
        st.builds(
            lambda call: f"```json\n{written(HERMES, [call])[12:-13]}\n```", st.tuples(st.just("get"), st.just("{}"))
        ),
    ),
    max_size=12,
).map("".join)


@settings(max_examples=500)
@given(st.sampled_from(CALL_FORMATS), MESSAGES, st.data())
def test_every_split_gives_the_same(call_format: CallFormat, text: str, data: st.DataObject) -> None:
    whole = read(text, call_format)
    assert read(list(text), call_format) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces, call_format) == whole


@given(st.sampled_from(CALL_FORMATS), MESSAGES)
def test_nothing_is_lost_and_calls_are_of_tools(call_format: CallFormat, text: str) -> None:
    content, calls, _ = read(text, call_format)
    if not calls:
        assert content == text
    assert all(name in NAMES for name, _ in calls)
    # In the text's order, each part of it is there.
    pattern = ".*".join(map(re.escape, [each for _, each in calls if each]))
    assert re.search(pattern, text, re.DOTALL)
    assert sum(map(len, [content, *(each for _, each in calls)])) <= len(text)


@pytest.mark.parametrize("text", [
    '<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>', '<tool_call>\n{"name": "get"}\n</tool_call>',
    '<tool_call>\n{"name": "get", "arguments": "{}"}\n</tool_call>', '<tool_call>\n{"arguments": {}}\n</tool_call>',
    "<tool_call> {'name': 'get'}", '<tool_call>\n{"name": "ge', "<tool_call", "<tool_call>", " \n", '{"name": "say", "arguments": {}}',
    '{"name": "get", "arguments": {}} is a call', '{"name": "get", "arguments": {x}}', '```json\n{"name": "get"}\n```',
    '{{"name": "get", "arguments": {}}', '{ {"name": "get", "arguments": {}}}', '[{"name": "get", "arguments": {}}, 1]', '```json\n{"name": "get", "arguments": {}} // a\n```',
    '```json\n{"name": "get", "arguments": {}}\n``` or ```sh\nls\n```', "  text  ",
])  # fmt: skip
def test_what_is_no_call_is_content_unchanged(text: str) -> None:
    assert read(text) == (text, [], False)


@pytest.mark.parametrize(("text", "content", "calls"), [
    # Loosely, as Qwen2.5-Coder writes.
    ('{"name": "get", "arguments": {"a": 1}}\n', "", [("get", '{"a": 1}')]),
    ('\n```json\n{"name": "get", "arguments": {}}\n```', "", [("get", "{}")]),
    ('```\n[{"name": "get", "arguments": {}}, {"arguments": {"a": 1}, "name": "get_time"}]\n```', "", [("get", "{}"), ("get_time", '{"a": 1}')]),
    ('I call:\n```json\n{"name": "get", "arguments": {}}', "I call:", [("get", "{}")]),
    ('I call:\n```json\n{"name": "get", "arguments": {}}\n```\nNow.', "I call:Now.", [("get", "{}")]),
    ('```sh\nls\n```\nor\n```json\n{"name": "get", "arguments": {}}\n```', "```sh\nls\n```\nor", [("get", "{}")]),
    ('{{"name": "get", "arguments": {"a": 1}}}', "", [("get", '{"a": 1}')]),
    ('So:\n```json\n{{"name": "get", "arguments": {}}}\n```', "So:", [("get", "{}")]),
    # A marker comes: then nothing is read loosely.
    ('{"name": "get", "arguments": {}}\n<tool_call>{"name": "get_time", "arguments": {}}</tool_call>',
     '{"name": "get", "arguments": {}}', [("get_time", "{}")]),
    # Behind its marker.
    ('<tool_call>{"arguments": {"a": "}"}, "name": "get"}</tool_call>', "", [("get", '{"a": "}"}')]),
    ('<tool_call>{"id": [1, {}], "name": "get", "x": "}", "arguments": {}, "y": 1}</tool_call>', "", [("get", "{}")]),
    ('<tool_call>\n{"name": "get", "arguments": {}}', "", [("get", "{}")]),
    ('<tool_call>{"name": "get", "arguments": {}}</tool_call>\n and more \n', "and more \n", [("get", "{}")]),
    ('<tool_call>bad<tool_call>{"name": "get", "arguments": {}}</tool_call>', "<tool_call>bad", [("get", "{}")]),
])  # fmt: skip
def test_loose_and_odd_calls_are_read(text: str, content: str, calls: list[Call]) -> None:
    assert read(text) == read(list(text)) == (content, calls, True)


def test_a_bare_call_is_only_at_the_messages_beginning() -> None:
    call = '{"name": "get", "parameters": {"a": 1}}'
    assert read(f"\n{call}; {call}", LLAMA) == ("", [("get", '{"a": 1}')] * 2, True)
    assert read(f"see {call}", LLAMA) == (f"see {call}", [], False)
    assert read(f"{call}; and", LLAMA) == ("; and", [("get", '{"a": 1}')], True)


@pytest.mark.parametrize("cut", ['{"a": "x', '{"a": 1', "{", '{"a": 1</tool_call>', '{"a": ]'])
def test_a_call_that_is_cut_is_not_whole(cut: str) -> None:
    content, calls, has_whole_call = read(f'<tool_call>\n{{"name": "get", "arguments": {cut}')
    assert (content + calls[0][1], len(calls), has_whole_call) == (content + cut.removesuffix(content), 1, False)


@pytest.mark.parametrize("call_format", CALL_FORMATS, ids=lambda each: each.name)
def test_a_call_that_is_cut_in_its_frame_is_no_content(call_format: CallFormat) -> None:
    for text in ("", "Well. "):
        whole = text + written(call_format, [("get", '{"a": 1}')])
        for end in range(len(text), len(whole)):
            parser = CallParser(TOOLS, call_format, "request")
            deltas = parser.feed(whole[:end]) + parser.finish(is_cut=True)
            content = "".join(each.text for each in deltas if isinstance(each, ContentDelta))
            # A bare beginning may be any JSON.
            assert content.strip() == text.strip() or (call_format.is_bare and not text)


def test_arguments_come_as_they_are_written() -> None:
    parser = CallParser(TOOLS, HERMES, "request", 2)
    call_id = "call_" + hashlib.sha256(b"request/2/0").hexdigest()[:24]
    assert parser.feed("Well. ") == [ContentDelta("Well.")]
    assert parser.feed("<tool_") == []
    assert parser.feed('call>\n{"name": "get", "argu') == []
    assert parser.feed('ments": {"a": "b') == [ToolCallDelta(0, call_id, "get"), ToolCallDelta(0, arguments='{"a": "b')]
    assert parser.feed("\\") == [ToolCallDelta(0, arguments="\\")]
    assert parser.feed('"}') == [ToolCallDelta(0, arguments='"}')]
    assert not parser.has_whole_call
    assert parser.feed('"}') == [ToolCallDelta(0, arguments='"}')]
    assert parser.has_whole_call
    assert parser.feed("}\n</tool_call>") == parser.finish() == []


def test_text_is_not_held_back() -> None:
    parser = CallParser(TOOLS, HERMES, "request")
    assert [parser.feed(piece) for piece in ("One", " two", "\n", "three")] == [
        [ContentDelta("One")], [ContentDelta(" two")], [], [ContentDelta("\nthree")],
    ]  # fmt: skip
    # JSON that can't be a call any more.
    parser = CallParser(TOOLS, HERMES, "request")
    assert parser.feed('{"name": "Ann') == []
    assert parser.feed('", "age"') == [ContentDelta('{"name": "Ann", "age"')]


def test_a_long_message_takes_linear_time() -> None:
    arguments = json.dumps({"text": "<tool_call>{" * 2_000})
    assert read(list(written(HERMES, [("get", arguments)])))[1] == [("get", arguments)]
    broken = '<tool_call>{"name": "get", ' * 20_000
    assert read(broken) == (broken, [], False)
