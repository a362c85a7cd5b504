"""Parses tools, the choice among them, and the calls in messages. The coordinator checks the tools themselves."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gateway.errors import NO_RENAMES, FieldNames, bad_request, bad_value
from gateway.fields import Fields, Values, plain
from paceline.chats import MAX_PARTS, MAX_TOOLS
from paceline.checks import require_at_most

CHOICES = ("none", "auto", "required")
# `tool_choice` by its type.
TOOL_CHOICE = {kind: Fields(plain("type", kind)) for kind in ("function", "allowed_tools")}
ALLOWED_TOOLS = Fields(plain("mode", "tools"))
# A call in a message. OpenAI's client sends back what it has parsed.
CALL = Fields(plain("id", "type", "function"), ("index", "provider_specific_fields", "extra_content", "cache_control"))
CALL_FUNCTION = Fields(plain("name", "arguments"), ("parsed_arguments",))


class ToolName(NamedTuple):
    """What a client calls a tool, if not by the name that the model knows."""

    name: str
    namespace: str = ""
    # Its input is text in place of an object of arguments.
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """`choice`: one of CHOICES, or the name of a function."""

    tools: list[Any]
    choice: str
    parallel: bool
    # The client's names of its fields.
    names: FieldNames
    # By the model's names.
    renamed: Mapping[str, ToolName] = field(default_factory=dict)
    # Types of tools that a provider would run, and this server can't.
    left_out: Sequence[str] = ()
    # Fields that promise more than this server can keep.
    unenforced: Sequence[str] = ()


NO_TOOLS = OfferedTools([], "auto", True, NO_RENAMES)


def parse_tools(values: Values, default_choice: str) -> OfferedTools:
    """Raises HttpError."""
    tools = listed_tools(values)
    parallel, choice = values["parallel_tool_calls"], values["tool_choice"]
    if choice is not None and not isinstance(choice, dict) and choice not in CHOICES:
        raise bad_value("tool_choice", choice, f"one of {', '.join(CHOICES)}, or an object with a type")
    if not tools:
        if choice in (None, "none", "auto"):
            return NO_TOOLS
        raise bad_request("tool_choice", "tool_choice needs tools")
    if not isinstance(choice, dict):
        return OfferedTools(tools, choice or default_choice, parallel, NO_RENAMES)
    kind = choice.get("type")
    if not isinstance(kind, str) or kind not in TOOL_CHOICE:
        raise bad_value("tool_choice.type", kind, f"one of {', '.join(TOOL_CHOICE)}")
    TOOL_CHOICE[kind].check(choice, "tool_choice")
    if kind == "allowed_tools":
        return _allowed(choice, tools, parallel)
    name = _name_of(choice)
    if name is None or name in CHOICES:
        raise bad_value("tool_choice.function.name", name, "the name of one of the tools")
    return OfferedTools(tools, name, parallel, {"tool_choice": "tool_choice.function.name"})


def listed_tools(values: Values) -> list[Any]:
    """Raises InvalidArgument."""
    tools: list[Any] = values["tools"]
    require_at_most(MAX_TOOLS, len(tools), "tools", "tools")
    return tools


class Offers:
    """Collects the tools of an API that describes them otherwise than chats do."""

    def __init__(self) -> None:
        # As in OfferedTools.
        self.left_out: list[str] = []
        self.unenforced: list[str] = []
        self._functions: list[dict[str, Any]] = []
        self._fields: list[str] = []
        self._renamed: dict[str, ToolName] = {}

    def add(self, function: dict[str, Any], field: str, name: ToolName | None = None) -> None:
        """`function`: as chats describe it. `field`, `name`: what the client calls it. Raises InvalidArgument."""
        require_at_most(MAX_TOOLS, len(self._functions) + 1, "tools", "tools")
        self._functions.append({key: value for key, value in function.items() if value is not None})
        self._fields.append(field)
        if name is not None:
            self._renamed[function["name"]] = name

    def known_as(self, name: ToolName) -> str:
        """Returns the model's name of a tool."""
        return next((known for known, each in self._renamed.items() if each[:2] == name[:2]), name.name)

    def make(
        self, choice: str | None, default_choice: str, parallel: bool, parameters: str,
        allowed: Collection[str] | None = None,
    ) -> OfferedTools:  # fmt: skip
        """`parameters`: the client's name of that field. `allowed`: the model's names; None: all. Raises HttpError."""
        offered = [
            (each, field)
            for each, field in zip(self._functions, self._fields, strict=True)
            if allowed is None or each.get("name") in allowed
        ]
        if not offered:
            if choice in (None, "none", "auto"):
                return replace(NO_TOOLS, left_out=self.left_out)
            raise bad_request("tool_choice", "tool_choice needs a tool that this server can offer")
        names = {"tool_choice": "tool_choice"}
        for at, (_, client_field) in enumerate(offered):
            place = f"tools[{at}]"
            names |= dict.fromkeys((place, f"{place}.function"), client_field)
            names[f"{place}.function.parameters"] = f"{client_field}.{parameters}"
        tools = [{"type": "function", "function": each} for each, _ in offered]
        return OfferedTools(
            tools, choice or default_choice, parallel, names, self._renamed, self.left_out, self.unenforced
        )


def _allowed(choice: Mapping[str, Any], tools: list[Any], parallel: bool) -> OfferedTools:
    """Offers the allowed tools alone."""
    field = "tool_choice.allowed_tools"
    given = choice.get("allowed_tools")
    if not isinstance(given, dict):
        raise bad_value(field, given, "an object with mode and tools")
    ALLOWED_TOOLS.check(given, field)
    mode, allowed = given.get("mode"), given.get("tools")
    if mode not in ("auto", "required"):
        raise bad_value(f"{field}.mode", mode, "auto or required")
    if not isinstance(allowed, list) or not allowed:
        raise bad_value(f"{field}.tools", allowed, "a list with at least one of the tools")
    require_at_most(MAX_TOOLS, len(allowed), f"{field}.tools", "tools")
    known, names = [_name_of(each) for each in tools], [_name_of(each) for each in allowed]
    for at, name in enumerate(names):
        if name is None or name not in known:
            raise bad_value(f"{field}.tools[{at}]", allowed[at], "one of the tools, as type and function with its name")
    places = [at for at, name in enumerate(known) if name in names]
    renames = {f"tools[{at}]": f"tools[{place}]" for at, place in enumerate(places)}
    return OfferedTools([tools[place] for place in places], mode, parallel, renames)


def _name_of(tool: Any) -> str | None:
    """Returns the name of a function, or None for anything else."""
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    return None


def parse_calls(calls: Any, field: str) -> list[dict[str, str]]:
    """Reads the calls of an assistant's message. Raises HttpError."""
    if not isinstance(calls, list):
        raise bad_value(field, calls, "a list of calls")
    require_at_most(MAX_PARTS, len(calls), field, "calls")
    return [_parse_call(each, f"{field}[{at}]") for at, each in enumerate(calls)]


def _parse_call(call: Any, field: str) -> dict[str, str]:
    if not isinstance(call, dict) or call.get("type", "function") != "function":
        raise bad_value(field, call, "an object with id, type, which is function, and function")
    CALL.check(call, field)
    function = call.get("function")
    if not isinstance(function, dict):
        raise bad_value(f"{field}.function", function, "an object with name and arguments")
    CALL_FUNCTION.check(function, f"{field}.function")
    texts: dict[str, Any] = {"id": call.get("id"), **{name: function.get(name) for name in CALL_FUNCTION.taken}}
    # Clients leave out ids, and arguments where a call has none; some send an object.
    texts |= {name: "" for name in ("id", "arguments") if texts[name] is None}
    if isinstance(texts["arguments"], dict):
        texts["arguments"] = json.dumps(texts["arguments"], ensure_ascii=False)
    for name, value in texts.items():
        if not isinstance(value, str):
            raise bad_value(f"{field}.{name if name == 'id' else f'function.{name}'}", value, "a string")
    return texts
