"""The tools that a request offers to the model."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from coordinator.json_text import load_json
from paceline.chats import MAX_TOOLS
from paceline.checks import require, require_at_most

MAX_TOOLS_CHARACTERS = 1 << 18
AUTO, NONE, REQUIRED = CHOICES = ("auto", "none", "required")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
# Keys of a function, and the type of each.
_KEYS: dict[str, tuple[type, str]] = {
    "name": (str, "text"), "description": (str, "text"), "parameters": (dict, "a JSON Schema object"),
    "strict": (bool, "true or false"),
}  # fmt: skip
# What some templates read of every function, "*" of every parameter, and what stands there if a client leaves it out.
_DEFAULTS: dict[tuple[str, ...], Any] = {
    ("description",): "", ("parameters",): {"type": "object", "properties": {}}, ("parameters", "properties"): {},
    ("parameters", "properties", "*", "description"): "",
}  # fmt: skip
_COMPLETE = {
    "name": "paceline_probe", "description": "x",
    "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "x"}}, "required": []},
}  # fmt: skip


@dataclass(frozen=True)
class Tools:
    """Functions that the model may call.

    choice: auto (the model decides), none, required (at least one call), or the name of the tool to call, once.
    parallel: more than one call in a message is allowed.
    """

    functions: tuple[dict[str, Any], ...]
    choice: str = AUTO
    parallel: bool = True

    @classmethod
    def parse(cls, json_text: str, choice: str = AUTO, parallel: bool = True) -> "Tools":
        """Reads OpenAI's list of tools. Raises InvalidArgument."""
        require_at_most(MAX_TOOLS_CHARACTERS, len(json_text), "tools", "characters")
        listed = load_json(json_text)
        require(isinstance(listed, list) and len(listed) > 0, "tools", json_text, "a JSON list of tools")
        require_at_most(MAX_TOOLS, len(listed), "tools", "tools")
        functions = tuple(_parse_tool(tool, f"tools[{at}]") for at, tool in enumerate(listed))
        names = [each["name"] for each in functions]
        for at, name in enumerate(names):
            require(name not in names[:at], f"tools[{at}].function.name", name, "unlike those before it")
        allowed = f"{', '.join(CHOICES)} or the name of a tool"
        require(choice in CHOICES or choice in names, "tool_choice", choice, allowed)
        return cls(functions, choice, parallel)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(each["name"] for each in self.functions)

    @property
    def offered(self) -> tuple[dict[str, Any], ...]:
        """Returns the functions that the choice allows."""
        if self.choice in CHOICES:
            return () if self.choice == NONE else self.functions
        return tuple(each for each in self.functions if each["name"] == self.choice)

    @property
    def for_template(self) -> list[dict[str, Any]]:
        """Returns what a chat template renders. `strict` says nothing to the model."""
        return [
            {"type": "function", "function": {key: value for key, value in each.items() if key != "strict"}}
            for each in self.functions
        ]


def parameters_of(function: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the schema of a function's arguments, which are always an object."""
    if "parameters" not in function:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **function["parameters"]}


def demanded_fields(takes: Callable[[Mapping[str, Any]], bool]) -> list[tuple[str, ...]]:
    """Returns the fields without which a chat template refuses a function. `takes`: whether it renders one."""

    def drop(holder: dict[str, Any], name: str) -> dict[str, Any]:
        return {key: value for key, value in holder.items() if key != name}

    return [each for each in _DEFAULTS if takes(_COMPLETE) and not takes(_changed(_COMPLETE, each, drop))]


def with_fields(tool: dict[str, Any], fields: Sequence[tuple[str, ...]]) -> dict[str, Any]:
    """Returns a tool whose function has these fields."""
    function = tool["function"]
    for field in fields:
        function = _changed(function, field, partial(_filled, default=_DEFAULTS[field]))
    return {**tool, "function": function}


def _filled(holder: dict[str, Any], name: str, default: Any) -> dict[str, Any]:
    return {**holder, name: holder.get(name, default)}


def _changed(
    value: dict[str, Any], path: Sequence[str], change: Callable[[dict[str, Any], str], dict[str, Any]]
) -> dict[str, Any]:
    """Changes the objects that hold the field at a path. `change`: takes such an object and the field's name."""
    name, *rest = path
    if not rest:
        return change(value, name)
    names = list(value) if name == "*" else [name]
    return value | {each: _changed(value[each], rest, change) for each in names if isinstance(value.get(each), dict)}


def _parse_tool(tool: Any, field: str) -> dict[str, Any]:
    """Returns its function, without keys that are null."""
    require(isinstance(tool, dict), field, tool, "an object with type and function")
    require(tool.get("type") == "function", f"{field}.type", tool.get("type"), "function")
    function = tool.get("function")
    require(isinstance(function, dict), f"{field}.function", function, "an object with a name")
    for key, value in function.items():
        require(key in _KEYS, f"{field}.function.{key}", value, "left out")
        kind, allowed = _KEYS[key]
        require(value is None or isinstance(value, kind), f"{field}.function.{key}", value, allowed)
    given = {key: value for key, value in function.items() if value is not None}
    name = given.get("name", "")
    allowed = "1 to 128 letters, digits, underscores, dots and hyphens"
    require(_NAME.fullmatch(name) is not None, f"{field}.function.name", name, allowed)
    require(name not in CHOICES, f"{field}.function.name", name, f"none of {', '.join(CHOICES)}, which are choices")
    kind = given.get("parameters", {}).get("type", "object")
    require(kind == "object", f"{field}.function.parameters.type", kind, "object")
    return given
