"""Tools are checked where they arrive, and each error names its field."""

import json
from typing import Any

import pytest

from coordinator.tools.call_formats import CALL_FORMATS, told_format
from coordinator.tools.offered_tools import MAX_TOOLS_CHARACTERS, Tools, parameters_of
from paceline.chats import MAX_TOOLS
from paceline.errors import InvalidArgument


def tool(name: object = "get", **more: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **more}}


def parse(*tools: object, choice: str = "auto") -> Tools:
    return Tools.parse(json.dumps(tools), choice)


def test_tools_are_read() -> None:
    schema = {"type": "object", "properties": {}}
    tools = parse(
        tool(description=None, parameters=schema, strict=True), tool("x" * 128), tool("a.b-c_D9"), choice="get"
    )
    assert tools.functions[:1] == ({"name": "get", "parameters": schema, "strict": True},)
    assert tools.names == {"get", "x" * 128, "a.b-c_D9"}
    assert tools.offered == tools.functions[:1]
    assert tools.for_template[0] == tool(parameters=schema)
    assert parse(tool(), choice="none").offered == ()
    assert len(parse(*(tool(f"f{at}") for at in range(MAX_TOOLS)), choice="required").offered) == MAX_TOOLS


def test_arguments_are_an_object_and_none_without_parameters() -> None:
    assert parameters_of({"name": "f", "parameters": {"properties": {}}}) == {"type": "object", "properties": {}}
    assert parameters_of({"name": "f"})["additionalProperties"] is False


@pytest.mark.parametrize(("tools", "field"), [
    ([], "tools"), ([tool(f"f{at}") for at in range(MAX_TOOLS + 1)], "tools"), ([1], "tools[0]"), ([{}], "tools[0].type"),
    ([tool() | {"type": "custom"}], "tools[0].type"), ([{"type": "function"}], "tools[0].function"),
    ([tool(), tool("")], "tools[1].function.name"), ([tool(1)], "tools[0].function.name"), ([tool("x" * 129)], "tools[0].function.name"),
    ([tool("a b")], "tools[0].function.name"), ([tool("é")], "tools[0].function.name"), ([tool("a\n")], "tools[0].function.name"),
    ([tool(), tool("b"), tool()], "tools[2].function.name"), ([tool(description=1)], "tools[0].function.description"),
    ([tool(parameters=[])], "tools[0].function.parameters"), ([tool(parameters={"type": "string"})], "tools[0].function.parameters.type"),
    ([tool(strict="yes")], "tools[0].function.strict"), ([tool(other=1)], "tools[0].function.other"),
    ([tool(description="\ud800")], "tools"), ([tool(parameters={"minimum": float("nan")})], "tools"),
    ([tool(description="x" * MAX_TOOLS_CHARACTERS)], "tools"),
])  # fmt: skip
def test_what_is_wrong_is_named(tools: list[Any], field: str) -> None:
    with pytest.raises(InvalidArgument) as error:
        parse(*tools)
    assert error.value.field == field


@pytest.mark.parametrize("text", ["", "{}", "[", "[" * 100_000, '"x"', "null"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^tools is"):
        Tools.parse(text)


@pytest.mark.parametrize("choice", ["", "any", "got"])
def test_a_choice_is_a_word_or_a_tools_name(choice: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^tool_choice is .* auto, none, required or the name of a tool$"):
        parse(tool(), choice=choice)


@pytest.mark.parametrize(("template", "vocabulary", "name"), [
    ("{{ message }}", ("<|python_tag|>",), "llama"), ("<|python_tag|>", (), "llama"),
    ("... <tool_call> ...", ("<|python_tag|>", "[TOOL_CALLS]"), "hermes"), ("", ("[TOOL_CALLS]", "[ARGS]"), "mistral"),
    ("[TOOL_CALLS][", ("[TOOL_CALLS]", "[ARGS]"), "mistral-list"), ("[TOOL_CALLS]x[ARGS]", (), "mistral"),
    ("<|tool_call|>", (), "granite"), ("<|tool_call|> <|/tool_call|>", (), "phi"), ("<tool_call><function=", ("<tool_call>",), None), ("", (), None),
])  # fmt: skip
def test_a_template_that_drops_calls_tells_of_them_by_its_marks(
    template: str, vocabulary: tuple[str, ...], name: str | None
) -> None:
    found = told_format(template, vocabulary)
    assert (None if found is None else found.name) == name


def test_names_of_formats_differ() -> None:
    assert len({each.name for each in CALL_FORMATS}) == len(CALL_FORMATS)
