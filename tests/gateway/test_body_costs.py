"""Counts are checked before what is counted: a body of any size is refused for its first limit."""

from typing import Any

import pytest

from gateway.chat_builder import Conversation
from gateway.dialects.chat import Chat
from gateway.dialects.completions import Completions
from gateway.dialects.dialect import Dialect
from gateway.dialects.infill import FillInTheMiddle
from gateway.dialects.messages import Messages
from gateway.dialects.responses import Responses
from gateway.errors import HttpError, from_exception
from gateway.requests import MAX_PROMPTS
from paceline.chats import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from paceline.errors import InvalidArgument, shown
from paceline.output_format import MAX_CHOICES, MAX_FORMAT_CHARACTERS, OutputFormat
from paceline.sampling_params import MAX_LISTED_IDS, MAX_STOP_STRINGS
from tests.gateway.scripted import SERVING

# Whatever is counted ends with what is wrong by itself.
BAD: Any = {"nothing": "known"}
ASK = {"messages": [{"role": "user", "content": "x"}]}
TOOL = {"type": "function", "function": {"name": "f"}}
LENGTH = SERVING.deployment.target.max_model_len
CHAT, TEXT, INFILL, ANTHROPIC, RESPONSES = Chat(), Completions(), FillInTheMiddle(), Messages(), Responses()


def too_many(most: int, one: Any) -> list[Any]:
    return [one] * most + [BAD]


def allowed(tools: list[Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": tools}}


CASES: list[tuple[Dialect, dict[str, Any], str, int]] = [
    (CHAT, {"messages": too_many(MAX_MESSAGES, {})}, "messages", MAX_MESSAGES),
    (CHAT, {"messages": [{"role": "user", "content": too_many(MAX_PARTS, BAD)}]}, "messages[0].content", MAX_PARTS),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": too_many(MAX_PARTS, BAD)}]}, "messages[0].tool_calls", MAX_PARTS),
    (CHAT, {**ASK, "tools": too_many(MAX_TOOLS, TOOL), "tool_choice": BAD}, "tools", MAX_TOOLS),
    (CHAT, {**ASK, "tools": [TOOL], "tool_choice": allowed(too_many(MAX_TOOLS, TOOL))}, "tool_choice.allowed_tools.tools", MAX_TOOLS),
    (CHAT, {**ASK, "stop": too_many(MAX_STOP_STRINGS, "x")}, "stop", MAX_STOP_STRINGS),
    (CHAT, {**ASK, "stop_token_ids": too_many(MAX_LISTED_IDS, 1)}, "stop_token_ids", MAX_LISTED_IDS),
    (CHAT, {**ASK, "allowed_token_ids": too_many(MAX_LISTED_IDS, 1)}, "allowed_token_ids", MAX_LISTED_IDS),
    (CHAT, {**ASK, "banned_token_ids": too_many(MAX_LISTED_IDS, 1)}, "banned_token_ids", MAX_LISTED_IDS),
    (CHAT, {**ASK, "logit_bias": {"no id": 1, **{str(at): 1 for at in range(MAX_LISTED_IDS)}}}, "logit_bias", MAX_LISTED_IDS),
    (CHAT, {**ASK, "guided_choice": too_many(MAX_CHOICES, "x")}, "guided_choice", MAX_CHOICES),
    (CHAT, {**ASK, "grammar": "::=" + "\n" * MAX_FORMAT_CHARACTERS}, "grammar", MAX_FORMAT_CHARACTERS),
    (TEXT, {"prompt": too_many(MAX_PROMPTS, "x")}, "prompt", MAX_PROMPTS),
    (TEXT, {"prompt": [1] * LENGTH + [BAD]}, "prompt", LENGTH),
    (TEXT, {"prompt": ["x", [1] * LENGTH + [BAD]]}, "prompt", LENGTH),
    (INFILL, {"input_extra": too_many(MAX_PARTS, BAD)}, "input_extra", MAX_PARTS),
    (ANTHROPIC, {"messages": too_many(MAX_MESSAGES, BAD)}, "messages", MAX_MESSAGES),
    (ANTHROPIC, {"messages": [{"role": "user", "content": too_many(MAX_PARTS, BAD)}]}, "messages[0].content", MAX_PARTS),
    (ANTHROPIC, {**ASK, "system": too_many(MAX_PARTS, BAD)}, "system", MAX_PARTS),
    (ANTHROPIC, {**ASK, "tools": too_many(MAX_TOOLS, BAD)}, "tools", MAX_TOOLS),
    (RESPONSES, {"input": too_many(MAX_PARTS, BAD)}, "input", MAX_PARTS),
    (RESPONSES, {"input": "x", "tools": too_many(MAX_TOOLS, {"type": "web_search"})}, "tools", MAX_TOOLS),
    (RESPONSES, {"input": "x", "tools": [{"type": "namespace", "name": "n", "tools":
        [*({"name": f"f{at}"} for at in range(MAX_TOOLS + 1)), BAD]}]}, "tools", MAX_TOOLS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("dialect", "body", "field", "most"), CASES, ids=[f"{case[0].path[1:]} {case[2]}" for case in CASES]
)
def test_what_is_too_many_is_refused_before_it_is_read(
    dialect: Dialect, body: dict[str, Any], field: str, most: int
) -> None:
    with pytest.raises((HttpError, InvalidArgument)) as caught:
        dialect.parse(body, SERVING)
    fault = from_exception(caught.value, dialect.field_names)
    assert (fault.status, fault.field) == (400, field)
    assert str(most) in fault.message


class Piece(str):
    """Counts how many of its characters are copied by `+`."""

    num_copied = 0

    def __add__(self, other: str) -> "Piece":
        Piece.num_copied += len(self) + len(other)
        return Piece(str(self) + other)

    __radd__ = __add__


def test_pieces_of_a_message_are_joined_once() -> None:
    conversation = Conversation()
    for _ in range(100):
        conversation.add_reasoning(Piece("xy"), "input")
    for _ in range(100):
        conversation.add_answer(Piece("zw"), "input")
    assert conversation.messages == [{"role": "assistant", "reasoning": "xy" * 100, "content": "zw" * 100}]
    assert Piece.num_copied == 0


@pytest.mark.parametrize("text", ["\n" * 100_000 + "x ::= y", " " * 100_000 + "::=", "\n start \n: ::="])
def test_lark_is_looked_for_line_by_line(text: str) -> None:
    """GBNF, and too long for its converter, or no grammar at all."""
    with pytest.raises(InvalidArgument) as caught:
        OutputFormat.of_grammar(text)
    assert caught.value.field == "grammar"


@pytest.mark.parametrize(
    "text", ['start: "::="', '\n\n  start : "::="', '%llguidance {}\nstart: "::="', '# x\n\tstart: "::="']
)
def test_lark_with_gbnfs_sign_stays_lark(text: str) -> None:
    assert OutputFormat.of_grammar(text).grammar == text


def test_an_error_reads_the_beginning_of_a_value_alone() -> None:
    class Unread:
        def __repr__(self) -> str:
            raise AssertionError("what is far behind was written")

    assert shown([[*range(100), Unread()]]).startswith("[[0, 1, 2")
    assert shown({at: at if at < 100 else Unread() for at in range(101)}).startswith("{0: 0, 1: 1")
    assert shown({"b": 1, "a": [1.5, None]}) == "{'b': 1, 'a': [1.5, None]}"
    assert shown("x" * 1000) == repr("x" * 1000)[:77] + "..."
    nested: Any = 1
    for _ in range(100_000):
        nested = [nested]
    assert len(shown(nested)) <= 80


def test_a_fields_name_is_short_whatever_a_client_calls_it() -> None:
    assert len(InvalidArgument("tools[0]." + "a." * 100_000, "is bad").field) <= 200
