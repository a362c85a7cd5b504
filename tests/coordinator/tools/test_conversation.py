"""Chat templates get calls as objects, with the spelling that the model wrote; or texts, if they know no tools."""

import json
from typing import Any

import pytest
from jinja2 import TemplateError
from transformers.utils.chat_template_utils import render_jinja_template

from coordinator.tools.call_formats import CALL_FORMATS, CallFormat
from coordinator.tools.call_probe import find_calls, probe_calls
from coordinator.tools.offered_tools import Tools
from coordinator.tools.tool_messages import Call, Message, renders_tools, to_template, write_calls, write_out
from paceline.errors import InvalidArgument

CALL = Call("call_1", "get", '{"a":"é <b>","n": 1.5}')
CHAT = (
    Message("system", "Be brief."), Message("user", "Go."), Message("assistant", "", (CALL, Call("call_2", "ping", "{"))),
    Message("tool", "one", tool_call_id="call_1"), Message("tool", "two", tool_call_id="call_2", name="other"),
    Message("assistant", "Done."),
)  # fmt: skip
TOOLS = Tools(({"name": "get", "parameters": {"properties": {"a": {"enum": ["é"]}}}, "strict": True},))
TEMPLATE = (
    "{% if tools %}{% for each in tools %}{{ each | tojson }}{% endfor %}{% endif %}{% for each in messages %}"
    "{{ each.role }}:{{ each.content }}{% for call in each.tool_calls %}{{ call.function.arguments | tojson }}{% endfor %}\n{% endfor %}"
)
# It tells of tools, and writes no calls.
DROPS_CALLS = "{% if tools %}{{ tools | tojson }}{% endif %}{% for each in messages %}{{ each.role }}:{{ each.content }}\n{% endfor %}"


def render_with(template: str) -> Any:
    def render(messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        try:
            (text,), _ = render_jinja_template([messages], chat_template=template, **options)
        except (TemplateError, TypeError) as error:
            raise InvalidArgument("chat.messages", str(error)) from error
        return str(text)

    return render


def test_a_template_is_asked_whether_it_renders_tools() -> None:
    assert renders_tools(render_with(TEMPLATE))
    assert not renders_tools(render_with(TEMPLATE.replace("{{ each | tojson }}", "")))
    assert not renders_tools(render_with("{{ raise_exception('no') }}"))


def test_a_template_gets_objects() -> None:
    messages = to_template(CHAT)
    assert messages[:2] == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go."}]
    first, second = messages[2]["tool_calls"]
    function = {"name": "get", "arguments": {"a": "é <b>", "n": 1.5}}
    assert first == {"id": "call_1", "type": "function", "function": function}
    # What is no JSON stays text.
    assert second["function"]["arguments"] == "{"
    assert messages[3] == {"role": "tool", "content": "one", "tool_call_id": "call_1", "name": "get"}
    assert messages[4]["name"] == "other"
    assert '{"a": "é <b>", "n": 1.5}' in render_with(TEMPLATE)(messages, {})


@pytest.mark.parametrize("arguments", ["[1]", "NaN", '{"a": NaN}', '{"a": "\\ud800"}', '{"a":' * 100_000])
def test_what_is_no_object_stays_text(arguments: str) -> None:
    (message,) = to_template([Message("assistant", "", (Call("c", "f", arguments),))])
    assert message["tool_calls"][0]["function"]["arguments"] == arguments


@pytest.mark.parametrize("arguments", ["", " \n", "null", "{}"])
def test_a_call_without_arguments_has_an_empty_object(arguments: str) -> None:
    chat = [Message("assistant", "", (Call("c", "f", arguments),))]
    (message,) = to_template(chat)
    assert message["tool_calls"][0]["function"]["arguments"] == {}
    assert write_out(chat, None)[0]["content"] == '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


WRITTEN = {
    "hermes": '<tool_call>\n{"name": "get", "arguments": {"a": "é <b>", "n": 1.5}}\n</tool_call>\n'
    '<tool_call>\n{"name": "ping", "arguments": "{"}\n</tool_call>',
    "mistral": '[TOOL_CALLS]get[ARGS]{"a": "é <b>", "n": 1.5}[TOOL_CALLS]ping[ARGS]"{"',
    "mistral-list": '[TOOL_CALLS][{"name": "get", "arguments": {"a": "é <b>", "n": 1.5}}, {"name": "ping", "arguments": "{"}]',
    "llama": '<|python_tag|>{"name": "get", "parameters": {"a": "é <b>", "n": 1.5}}; {"name": "ping", "parameters": "{"}',
}


@pytest.mark.parametrize("call_format", CALL_FORMATS, ids=lambda each: each.name)
def test_calls_are_written_as_the_model_writes_them(call_format: CallFormat) -> None:
    assert write_calls(to_template(CHAT)[2], call_format) == WRITTEN[call_format.name]


@pytest.mark.parametrize(("ids", "answered", "expected"), [
    (("", ""), ("", ""), "ab"), (("1", "1"), ("1", "1"), "ab"), (("1", "2"), ("2", "1"), "ba"), (("1", "2"), ("1", "1"), "aa"),
    (("1", "2"), ("3", "2"), "-b"), (("", ""), ("", "", ""), "abb"),
])  # fmt: skip
def test_results_get_the_name_and_id_of_their_call(
    ids: tuple[str, ...], answered: tuple[str, ...], expected: str
) -> None:
    calls = tuple(Call(call_id, name, "{}") for call_id, name in zip(ids, "ab", strict=True))
    # The same ids again: results are of the newest call without one.
    chat = [Message("assistant", "", calls), *(Message("tool", "x", tool_call_id=each) for each in answered)]
    for at, (message, *results) in enumerate((to_template(chat), to_template([*chat, *chat])[len(chat) :])):
        assert [each.get("name", "-") for each in results] == list(expected), at
        of_calls = {call["id"] for call in message["tool_calls"]}
        assert all(each["tool_call_id"] in of_calls for each in results if "name" in each)


@pytest.mark.parametrize("call_format", CALL_FORMATS, ids=lambda each: each.name)
def test_the_format_of_calls_that_a_template_drops_is_known_by_its_marks(call_format: CallFormat) -> None:
    render = render_with(DROPS_CALLS)
    assert probe_calls(render) is None
    found = find_calls(render, call_format.begin + call_format.middle, ())
    assert (found.format, found.drops_calls) == (call_format, True)


def test_a_template_that_refuses_to_be_asked_does_not_drop_calls() -> None:
    assert not find_calls(render_with(TEMPLATE), "<tool_call>", ()).drops_calls
    refuses = "{% if messages[-1].role == 'assistant' %}{{ raise_exception('no') }}{% endif %}" + DROPS_CALLS
    assert not find_calls(render_with(refuses), "<tool_call>", ()).drops_calls


def test_without_a_template_for_tools_all_is_written_out() -> None:
    messages = write_out(CHAT, TOOLS)
    assert [each["role"] for each in messages] == ["system", "user", "assistant", "user", "assistant"]
    system, _, calls, results, _ = (each["content"] for each in messages)
    assert system.startswith("Be brief.\n\n# Tools")
    signature = {"type": "function", "function": {"name": "get", "parameters": {"properties": {"a": {"enum": ["é"]}}}}}
    assert f"<tools>\n{json.dumps(signature, ensure_ascii=False)}\n</tools>" in system
    assert calls == (
        '<tool_call>\n{"name": "get", "arguments": {"a": "é <b>", "n": 1.5}}\n</tool_call>\n'
        '<tool_call>\n{"name": "ping", "arguments": "{"}\n</tool_call>'
    )
    assert results == "<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>"


def test_tools_make_a_system_message_where_there_is_none() -> None:
    user = Message("user", "Go.")
    assert [each["role"] for each in write_out([user], TOOLS)] == ["system", "user"]
    assert write_out([user], None) == [{"role": "user", "content": "Go."}]
    # A later one keeps its place.
    assert [each["role"] for each in write_out([user, CHAT[0]], TOOLS)] == ["system", "user", "system"]


@pytest.mark.parametrize(("message", "field"), [
    (Message("user", "", (CALL,)), "chat.messages[1].tool_calls"), (Message("user", "", tool_call_id="c"), "chat.messages[1].tool_call_id"),
])  # fmt: skip
def test_fields_of_other_roles_are_refused(message: Message, field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        to_template([CHAT[1], message])
    assert error.value.field == field
