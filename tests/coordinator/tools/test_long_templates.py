"""What looks at a chat template takes linear time, also where its texts are written to hurt.

They are so long that a quadratic search takes minutes, which is more than a test may.
"""

import json
from typing import Any

import pytest

from coordinator.reasoning_marks import Messages, ReasoningMarks, find_marks
from coordinator.tools.call_formats import WrittenCall
from coordinator.tools.call_probe import find_calls

SOURCES = {
    "tags that nothing closes": "<think>" * 300_000,
    "a name without end": "<" + "think" * 300_000,
    "phrases without end": "'" + "thoughts " * 300_000,
    "literals without end": "split('" * 300_000,
    "spaces after a literal": "'x'" + " " * 1_000_000,
}


@pytest.mark.parametrize("name", SOURCES)
def test_marks_in_a_source(name: str) -> None:
    def render(messages: Messages, options: dict[str, Any], opens_turn: bool) -> str:
        return "".join(each["content"] for each in messages if isinstance(each["content"], str))

    assert find_marks(render, SOURCES[name]) is None
    assert find_marks(render, SOURCES[name] + "<thought></thought>") == ReasoningMarks("<thought>", "</thought>")


@pytest.mark.parametrize(("before", "after"), [("x" * 100_000 + " ", "</think>"), ("x ", "<a>" * 300_000)])
def test_marks_around_reasoning(before: str, after: str) -> None:
    def render(messages: Messages, options: dict[str, Any], opens_turn: bool) -> str:
        turns = [each["content"] for each in messages]
        for at, each in enumerate(messages):
            if each["role"] == "assistant":
                reasoning = f"think: {each['reasoning']}{after}" if "reasoning" in each else "then "
                turns[at] = f"{before}{reasoning}{turns[at]}"
        return "".join(map(str, turns)) + (before + "th") * opens_turn

    found = find_marks(render, "")
    assert found is not None
    assert (found.begin, found.key) == ("think:", "reasoning")


@pytest.mark.parametrize("before", ["<" + "eot" * 100_000, "<eot>" * 100_000, " " * 300_000, "1" * 100_000])
def test_what_stands_before_calls(before: str) -> None:
    def render(messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
        calls = [call["function"] for each in messages for call in each.get("tool_calls", ())]
        written = "".join(f"<call>{each['name']}{json.dumps(each['arguments'])}</call>" for each in calls)
        return "".join(each["content"] for each in messages) + (f"{before}.{written}" if calls else "")

    found = find_calls(render, "", ()).format
    assert found is not None
    assert found.write([WrittenCall("x", {})]).endswith("<call>x{}</call>")
