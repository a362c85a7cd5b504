"""Whatever an agent's conversation looks like, its chat template refuses and drops nothing, and what it renders stays as it is."""

import json
import re
from functools import cache
from itertools import pairwise
from typing import Any

import pytest

from coordinator.chat_template import CONTINUED, NEXT_TURN
from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import Tools
from coordinator.tools.tool_messages import Call, Message
from tests.coordinator.tools.test_roles import rendered, tokenizer_with

TOOLS = Tools(({"name": "offered"},))
HEAD = "{% if tools %}{{ tools | tojson }}{% endif %}{% for each in messages %}"
ARGUMENTS = "{{ call.function.arguments | tojson }}"
CALLS = f"{{% for call in each.tool_calls %}}<{{{{ call.function.name }}}} {ARGUMENTS}>{{% endfor %}}"
TURN = f"[{{{{ each.role }}}}]{{{{ each.content }}}}{CALLS}"
END = "{% endfor %}"
TAKES_ALL = HEAD + TURN + END


def refuses(condition: str) -> str:
    return f"{HEAD}{{% if {condition} %}}{{{{ raise_exception('no') }}}}{{% endif %}}{TURN}{END}"


# Small templates of the constructions that published ones have.
TEMPLATES = {
    "takes all": TAKES_ALL,
    # Granite 3.3.
    "drops calls": HEAD + TURN.replace(CALLS, "") + END,
    "refuses calls": refuses("each.tool_calls"),
    "drops results": f"{HEAD}{{% if each.role != 'tool' %}}{TURN}{{% endif %}}{END}",
    "drops both": HEAD + "{% if each.role != 'tool' %}" + TURN.replace(CALLS, "") + "{% endif %}" + END,
    # Hermes 2 Pro, Command R7B.
    "drops text beside calls": HEAD + TURN.replace("{{ each.content }}", "{% if not each.tool_calls %}{{ each.content }}{% endif %}") + END,
    "drops calls beside text": HEAD + TURN.replace(CALLS, f"{{% if not each.content %}}{CALLS}{{% endif %}}") + END,
    "refuses text beside calls": refuses("each.tool_calls and each.content"),
    # Llama 3.1.
    "refuses parallel calls": refuses("each.tool_calls and each.tool_calls | length > 1"),
    # gpt-oss.
    "drops parallel calls": HEAD + TURN.replace("each.tool_calls %", "(each.tool_calls or [])[:1] %") + END,
    # Kimi K2.
    "demands a result of each call": refuses(
        "each.tool_calls and each.tool_calls | length > 1 and (loop.index0 + each.tool_calls | length >= messages | length "
        "or messages[loop.index0 + each.tool_calls | length].role != 'tool')"
    ),
    # Qwen3-Coder, GLM.
    "demands an object": TAKES_ALL.replace(ARGUMENTS, "{% for name, value in call.function.arguments | items %}{{ name }}={{ value }};{% endfor %}"),
    "drops other arguments": TAKES_ALL.replace(ARGUMENTS, f"{{% if call.function.arguments is mapping %}}{ARGUMENTS}{{% endif %}}"),
    # DeepSeek V3, functionary.
    "demands text": TAKES_ALL.replace(ARGUMENTS, "{{ ':' + call.function.arguments }}"),
    # As jinja joins a text to one that `safe` marks.
    "escapes objects": TAKES_ALL.replace(
        CALLS,
        "{% for call in each.tool_calls %}{% set given = call.function.arguments %}"
        "{{ '<' + call.function.name + ' ' + (given if given is string else given | tojson | safe) + '>' }}{% endfor %}",
    ),
    "prints Python": TAKES_ALL.replace(ARGUMENTS, "{{ call.function.arguments }}"),
    # gpt-oss, MiniMax.
    "demands a call before a result": refuses(
        "each.role == 'tool' and (loop.first or not (loop.previtem.tool_calls or loop.previtem.role == 'tool'))"
    ),
    # Gemma 4: results are rendered with their calls.
    "drops results apart": refuses("false").replace(
        TURN, f"{{% if each.role != 'tool' or loop.first or loop.previtem.tool_calls or loop.previtem.role == 'tool' %}}{TURN}{{% endif %}}"
    ),
    "drops calls without results": HEAD
    + TURN.replace(CALLS, f"{{% if not loop.last and loop.nextitem.role == 'tool' %}}{CALLS}{{% endif %}}") + END,
    # Mistral 7B v0.3: calls and results do not count.
    "demands turns": (
        "{% set turn = namespace(index=0) %}{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}"
        "{% set messages = messages[1:] %}{% endif %}" + HEAD + "{% if each.role != 'tool' and not each.tool_calls %}"
        "{% if (each.role == 'user') != (turn.index % 2 == 0) %}{{ raise_exception('must alternate') }}{% endif %}"
        "{% set turn.index = turn.index + 1 %}{% endif %}{% if each.tool_calls %}[assistant]" + CALLS + "{% else %}"
        + TURN.replace(CALLS, "") + "{% endif %}" + END
    ),
    "demands turns that say something": "",
    "demands nine characters of ids": refuses(
        "(each.role == 'tool' and (each.tool_call_id is undefined or each.tool_call_id | length != 9)) or "
        "(each.tool_calls and each.tool_calls[0].id | length != 9)"
    ),
    "demands names of results": refuses("each.role == 'tool' and each.name is undefined"),
    # Mistral's: the system message belongs to the last user's.
    "drops systems before an answer": f"{HEAD}{{% if each.role != 'system' or messages[-1].role == 'user' %}}{TURN}{{% endif %}}{END}",
    # Qwen3.5.
    "demands a user": "{% if not messages | selectattr('role', 'equalto', 'user') | list %}{{ raise_exception('no user') }}{% endif %}" + TAKES_ALL,
    # Llama 3.1: the first message is the user's, with the tools.
    "takes the first for a user's": "{% if messages[0].role != 'system' %}[user]{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}" + TAKES_ALL,
    # DeepSeek R1's: the last system message counts.
    "drops systems but the last": "{{ (messages | selectattr('role', 'equalto', 'system') | list | last | default({})).content }}"
    + HEAD + "{% if each.role != 'system' %}" + TURN + "{% endif %}" + END,
    "drops results and late systems": f"{HEAD}{{% if each.role != 'tool' and (each.role != 'system' or loop.first) %}}{TURN}{{% endif %}}{END}",
    "drops calls that nothing follows": HEAD
    + TURN.replace(CALLS, f"{{% if messages[loop.index:] | selectattr('role', 'equalto', 'tool') | list %}}{CALLS}{{% endif %}}") + END,
    "refuses an empty system": refuses("each.role == 'system' and not each.content"),
    "has a system of its own": HEAD + "{% if loop.first and each.role != 'system' %}[own]{% endif %}{% if each.role != 'system' %}" + TURN + "{% endif %}" + END,
    # DeepSeek V3.
    "drops text beside later calls": HEAD + TURN.replace("{{ each.content }}", "{% if not (each.tool_calls and messages[:loop.index0] | selectattr('role', 'equalto', 'tool') | list) %}{{ each.content }}{% endif %}") + END,
    "refuses silence": refuses("each.role == 'assistant' and not (each.content or each.tool_calls)"),
}  # fmt: skip
TEMPLATES["demands turns that say something"] = TEMPLATES["demands turns"].replace(
    "{% if each.tool_calls %}", "{% if each.role == 'assistant' and not (each.content or each.tool_calls) %}{{ raise_exception('silent') }}{% endif %}{% if each.tool_calls %}"
)  # fmt: skip


def user(text: str) -> Message:
    return Message("user", text)


def system(text: str) -> Message:
    return Message("system", text)


def answer(text: str = "", *calls: Call, is_prefix: bool = False) -> Message:
    return Message("assistant", text, calls, is_prefix=is_prefix)


def result(text: str, call_id: str = "000000001") -> Message:
    return Message("tool", text, tool_call_id=call_id)


ONE = Call("000000001", "ping", '{"a": "one1"}')
TWO = Call("000000002", "pong", '{"a": "two2"}')
FIRST, LAST = [system("rules0"), user("ask0")], [answer("done0"), user("more0")]


def with_arguments(arguments: str) -> list[Message]:
    return [*FIRST, answer("", Call("000000001", "ping", arguments)), result("got1"), *LAST]


# Those that a template without faults takes: nothing may change.
ORDINARY = {
    "a call": [*FIRST, answer("", ONE), result("got1"), *LAST],
    "a call without its answer": [*FIRST, answer("", ONE), result("got1")],
    "text beside a call": [*FIRST, answer("beside0", ONE), result("got1"), *LAST],
    "parallel calls": [*FIRST, answer("", ONE, TWO), result("got1"), result("got2", "000000002"), *LAST],
    "text beside parallel calls": [*FIRST, answer("beside0", ONE, TWO), result("got1"), result("got2", "000000002"), *LAST],
    "results in another order": [*FIRST, answer("", ONE, TWO), result("got2", "000000002"), result("got1"), *LAST],
    "a result missing": [*FIRST, answer("", ONE, TWO), result("got2", "000000002"), *LAST],
    "no result": [*FIRST, answer("", ONE), user("more0"), *LAST],
    "no result yet": [*FIRST, answer("beside0", ONE)],
    "a result without its call": [*FIRST, result("got1"), *LAST],
    "a result first": [result("got1"), *LAST],
    "a result after the system": [system("rules0"), result("got1"), answer("done0")],
    "a result after an answer": [*FIRST, answer("before0"), result("got1"), *LAST],
    "a user after a result": [*FIRST, answer("", ONE), result("got1"), user("more0"), *LAST],
    "a user before a result": [*FIRST, answer("", ONE), user("wait0"), result("got1"), *LAST],
    "calls one after another": [*FIRST, answer("", ONE), answer("", TWO), result("got1"), result("got2", "000000002"), *LAST],
    "a call after an answer": [*FIRST, answer("before0"), answer("", ONE), result("got1"), *LAST],
    "a call first": [system("rules0"), answer("", ONE), result("got1"), *LAST],
    "text beside a later call": [*FIRST, answer("", ONE), result("got1"), answer("beside0", TWO), result("got2", "000000002"), *LAST],
    "a system between users": [*FIRST, *LAST, system("late0"), user("again0"), *LAST],
    "two results of a call": [*FIRST, answer("", ONE), result("got1"), result("got2"), *LAST],
    "the same id again": [*FIRST, answer("", ONE), result("got1"), answer("", ONE), result("got2"), *LAST],
    "a system after a result": [*FIRST, answer("", ONE), result("got1"), system("late0"), *LAST],
    "two answers": [*FIRST, answer("before0"), *LAST],
    "an empty answer": [*FIRST, answer(), user("again0"), *LAST],
    "an answer first": [system("rules0"), *LAST],
    "a begun answer": [*FIRST, answer("", ONE), result("got1"), answer("begun0", is_prefix=True)],
    "an empty result": [*FIRST, answer("", ONE), result(""), *LAST],
    "a system alone": [system("rules0")],
    "an empty system": [system(""), user("ask0")],
}  # fmt: skip
ODD = {
    "blank text beside a call": [*FIRST, answer(" \n", ONE), result("got1"), *LAST],
    "no ids": [*FIRST, answer("", Call("", "ping", '{"a": "one1"}'), Call("", "pong", "{}")), result("got1", ""), result("got2", ""), *LAST],
    "no id of a result": [*FIRST, answer("", ONE), result("got1", ""), *LAST],
    "a result without a call or id": [*FIRST, answer("before0"), result("got1", ""), *LAST],
    "one id of two calls": [*FIRST, answer("", ONE, Call("000000001", "pong", "")), result("got1"), result("got2"), *LAST],
    "long ids": [*FIRST, answer("", Call("toolu_0123456789", "ping", "")), result("got1", "toolu_0123456789"), *LAST],
    **{f"arguments {text}": with_arguments(text) for text in ("", "null", "{}", '{"a": "cut1', '"bare1"', '["list1"]', "77771", "{")},
    "cut arguments beside text": [*FIRST, answer("beside0", Call("000000001", "ping", '{"a": "cut1')), result("got1"), *LAST],
}  # fmt: skip
AGENT = [message for case in ({**ORDINARY, **ODD}).values() for message in case if not message.is_prefix]


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return tokenizer_with(TEMPLATES[name])


@cache
def chats_of(name: str) -> Chats:
    return Chats(tokenizer_of(name))


def encoded(name: str, messages: list[Message], tools: Tools | None = TOOLS) -> str:
    tokenizer = tokenizer_of(name)
    written, options = chats_of(name).template_input(messages, tools)
    ids = tokenizer.encode_chat(written, options, CONTINUED if messages[-1].is_prefix else NEXT_TURN)
    return tokenizer.decode(ids, skip_special_tokens=False)


def words_of(messages: list[Message]) -> list[str]:
    written = [each.content for each in messages]
    written += [f"{call.name} {call.arguments}" for each in messages for call in each.calls]
    return re.findall(r"[a-z]+\d|\d{5}|ping|pong", " ".join(written))


@pytest.mark.parametrize("tools", [TOOLS, None], ids=["tools", "no tools"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_nothing_is_refused_or_dropped(name: str, tools: Tools | None) -> None:
    for case, messages in ({**ORDINARY, **ODD, "all of them": AGENT}).items():
        text = encoded(name, messages, tools)
        words = words_of(messages)
        assert [each for each in set(words) if text.count(each) < words.count(each)] == [], (case, text)


@pytest.mark.parametrize("case", ORDINARY)
def test_what_a_template_renders_stays_as_it_is(case: str) -> None:
    messages = ORDINARY[case]
    names: dict[str, str] = {}
    plain: list[dict[str, Any]] = []
    for each in messages:
        plain.append({"role": each.role, "content": each.content})
        if each.calls:
            names |= {call.id: call.name for call in each.calls}
            functions = ({"name": call.name, "arguments": json.loads(call.arguments)} for call in each.calls)
            calls = zip(each.calls, functions, strict=True)
            plain[-1]["tool_calls"] = [
                {"id": call.id, "type": "function", "function": function} for call, function in calls
            ]
        if each.tool_call_id:
            plain[-1]["tool_call_id"] = each.tool_call_id
        if each.tool_call_id in names:
            plain[-1]["name"] = names[each.tool_call_id]
    assert chats_of("takes all").template_input(messages, TOOLS)[0] == plain


def test_a_system_between_users_is_theirs_where_only_other_turns_are_counted() -> None:
    # Tiny Aya, Cohere 2.
    counts = (
        "{% for each in messages | rejectattr('role', 'equalto', 'system') | list %}"
        "{% if (each.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('turns') }}{% endif %}{% endfor %}"
    )
    tokenizer = tokenizer_with(counts + TAKES_ALL)
    chat = [*FIRST, answer("done0"), user("more0"), system("late0"), user("again0")]
    text = tokenizer.render_chat(Chats(tokenizer).template_input(chat, None)[0], {})
    assert text.endswith("[user]more0\n\n<system-reminder>\nlate0\n</system-reminder>\n\nagain0")
    between = [*FIRST, system("late0"), *LAST]
    assert tokenizer.render_chat(Chats(tokenizer).template_input(between, None)[0], {}).count("[system]") == 2


# Each reads a field of its tools: Apertus, Qwen3-Coder, Seed-OSS, Command R+.
DEMANDS = {
    "{{ f.description + '' }}": {"name": "x", "description": "", "parameters": {"properties": {"a": {}}}},
    "{{ f.parameters | tojson }}": {"name": "x", "parameters": {"properties": {"a": {}}}},
    "{{ f.parameters.properties.items() }}": {"name": "x", "parameters": {"properties": {"a": {}}}},
    "{% for p in f.parameters.properties.values() %}{{ p.description + '' }}{% endfor %}": {"name": "x", "parameters": {"properties": {"a": {"description": ""}}}},
}  # fmt: skip
BARE = {"parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize("demand", DEMANDS)
def test_tools_get_the_fields_that_a_template_demands_and_no_others(demand: str) -> None:
    loop = "{% for t in tools or [] %}{% set f = t.function %}{{ f | tojson }}" + demand + "{% endfor %}"
    chats = Chats(tokenizer_with(loop + TAKES_ALL))
    messages = [user("ask0")]

    def tools(**function: Any) -> dict[str, Any]:
        given = Tools(({"name": "x", **function},))
        found: dict[str, Any] = chats.template_input(messages, given)[1]["tools"][0]["function"]
        chats.template_input([*FIRST, answer("", ONE), result("got1"), *LAST], given)
        return found

    assert tools(parameters={"properties": {"a": {}}}) == DEMANDS[demand]
    whole = {"description": "y", "parameters": {"properties": {"a": {"description": "z"}}}}
    assert tools(**whole) == {"name": "x", **whole}
    without = {"{{ f.description + '' }}": {"description": ""}}.get(demand, BARE)
    assert tools() == {"name": "x", **without}


WRITTEN = '<tool_call>\n{"name": "ping", "arguments": {"a": "one1"}}\n</tool_call>'
RESPONSE = "<tool_response>\ngot1\n</tool_response>"
PING, PONG = '<ping {"a": "one1"}>', '<pong {"a": "two2"}>'
MENDED = {
    ("drops calls", "a call"): f"[assistant]{WRITTEN}[tool]got1",
    ("refuses calls", "text beside a call"): f"[assistant]beside0\n{WRITTEN}[tool]got1",
    ("drops results", "a call"): f"[assistant]{PING}[user]{RESPONSE}[assistant]done0",
    ("drops both", "a call"): f"[assistant]{WRITTEN}[user]{RESPONSE}[assistant]done0",
    ("drops text beside calls", "text beside a call"): f"[assistant]beside0[assistant]{PING}[tool]got1",
    ("drops calls beside text", "blank text beside a call"): f"[assistant]{PING}[tool]got1",
    ("demands turns", "text beside a call"): f"[assistant]beside0[user][assistant]{PING}[tool]got1[assistant]done0",
    ("refuses parallel calls", "text beside parallel calls"): f"[assistant]beside0{PING}[tool]got1[assistant]{PONG}[tool]got2",
    ("drops parallel calls", "results in another order"): f"[assistant]{PING}[tool]got1[assistant]{PONG}[tool]got2",
    ("refuses parallel calls", "one id of two calls"): f"{PING}[tool]got1[assistant]<pong {{}}>[tool]got2",
    ("demands a result of each call", "a result missing"): f"[assistant]{PING}[assistant]{PONG}[tool]got2",
    ("demands an object", 'arguments {"a": "cut1'): '<ping arguments={"a": "cut1;>',
    ("demands an object", 'arguments ["list1"]'): "<ping arguments=['list1'];>",
    ("takes all", 'arguments {"a": "cut1'): r'<ping "{\"a\": \"cut1">',
    ("takes all", "arguments null"): "<ping {}>",
    ("demands text", "a call"): '<ping :{"a": "one1"}>',
    ("demands text", 'arguments {"a": "cut1'): '<ping :{"a": "cut1>',
    ("prints Python", "a call"): PING,
    ("escapes objects", "a call"): PING,
    ("demands a call before a result", "a result without its call"): f"[user]{RESPONSE}[assistant]done0",
    ("drops results apart", "a user before a result"): f"{PING}[tool]got1[user]wait0[assistant]done0",
    ("drops calls without results", "no result"): f"[assistant]{WRITTEN}[user]more0",
    ("demands turns", "no result"): f"[user]ask0[assistant]{PING}[user]more0",
    ("demands turns", "a user after a result"): f"{PING}[tool]got1[assistant][user]more0",
    ("demands turns that say something", "a user after a result"): f"{PING}[tool]got1[assistant]...[user]more0",
    ("demands turns", "a system after a result"): "[tool]got1[assistant][user]<system-reminder>\nlate0\n</system-reminder>[assistant]done0",
    ("demands turns", "two answers"): "[assistant]before0\n\ndone0[user]",
    ("demands turns", "a call after an answer"): f"[assistant]before0[user][assistant]{PING}[tool]got1[assistant]done0",
    ("demands turns", "an answer first"): "[user][assistant]done0",
    ("drops systems before an answer", "a call without its answer"): f"[user]rules0\n\nask0[assistant]{PING}[tool]got1",
    ("demands a user", "a result after the system"): "[system]rules0[user][tool]got1",
    ("demands a user", "a system alone"): "[system]rules0[user]",
    ("takes the first for a user's", "a call first"): f"[system]rules0[assistant]{PING}",
    ("drops systems but the last", "a system after a result"): "rules0",
    ("drops results and late systems", "a system after a result"): f"[user]{RESPONSE}[user]<system-reminder>",
    ("drops calls that nothing follows", "a user before a result"): f"[assistant]{PING}[user]wait0[tool]got1",
    ("refuses an empty system", "an empty system"): "}][user]ask0",
    ("has a system of its own", "an empty system"): "}][user]ask0",
    ("refuses silence", "an empty answer"): "[user]ask0[user]again0",
}  # fmt: skip


@pytest.mark.parametrize(("name", "case"), MENDED)
def test_a_fault_is_mended_in_one_way(name: str, case: str) -> None:
    messages = {**ORDINARY, **ODD}[case]
    assert MENDED[name, case] in rendered(tokenizer_of(name), messages, TOOLS)


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_growing_conversation_keeps_its_beginning(name: str) -> None:
    """But for the message that was the last: what follows a call decides whether it has a result."""
    chat = [*FIRST, answer("beside0", ONE, TWO), result("got1"), result("got2", "000000002"), *LAST]
    chat += [answer("", Call("000000003", "ping", '{"a": "cut1')), result("got3", "000000003"), answer("done0")]
    written = [chats_of(name).template_input(chat[:length], TOOLS)[0] for length in (5, 7, 9, 10)]
    if name != "drops systems before an answer":
        for shorter, longer in pairwise(written):
            assert longer[: len(shorter)] == shorter


def test_ids_are_kept_where_a_template_takes_them() -> None:
    messages = ODD["long ids"]
    taken = chats_of("takes all").template_input(messages, TOOLS)[0]
    assert taken[3]["tool_call_id"] == taken[2]["tool_calls"][0]["id"] == "toolu_0123456789"
    short = chats_of("demands nine characters of ids").template_input(messages, TOOLS)[0]
    assert short[3]["tool_call_id"] == short[2]["tool_calls"][0]["id"]
    assert len(short[3]["tool_call_id"]) == 9
    kept = chats_of("demands nine characters of ids").template_input(ORDINARY["a call"], TOOLS)[0]
    assert kept[3]["tool_call_id"] == "000000001"


def test_a_template_with_tools_is_asked_with_tools() -> None:
    """Another template renders chats with tools, and takes what the default one does not."""
    tokenizer = tokenizer_with([  # type: ignore[arg-type]
        {"name": "default", "template": TEMPLATES["refuses calls"]}, {"name": "tool_use", "template": TAKES_ALL},
    ])  # fmt: skip
    assert PING in rendered(tokenizer, ORDINARY["a call"], TOOLS)
    assert f"[assistant]{PING}[tool]got1" in rendered(tokenizer, ORDINARY["a call"])


def test_calls_are_rendered_by_a_template_without_tools_if_none_are_offered() -> None:
    """With tools, these are described in Hermes's words, and so are the calls."""
    tokenizer = tokenizer_with(TAKES_ALL.removeprefix("{% if tools %}{{ tools | tojson }}{% endif %}"))
    assert f"[assistant]{PING}[tool]got1" in rendered(tokenizer, ORDINARY["a call"])
    assert f"[assistant]{WRITTEN}[user]{RESPONSE}" in rendered(tokenizer, ORDINARY["a call"], TOOLS)
