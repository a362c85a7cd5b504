"""Random tools and calls of them: nested values, and strings full of quotes, line ends and a format's own marks."""

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from coordinator.tools.call_arguments.json_arguments import JsonArguments
from coordinator.tools.call_arguments.keyword_arguments import KeywordArguments
from coordinator.tools.call_arguments.tagged_arguments import TaggedArguments
from coordinator.tools.call_formats import CallFormat, WrittenCall
from coordinator.tools.call_parser import CallParser, ContentDelta, Delta
from coordinator.tools.offered_tools import Tools

Call = tuple[str, dict[str, Any]]
IDS = ("a1b2c3d4e", "f5g6h7i8j", "k9l0m1n2o")
PIECES = (
    "", " ", "\n", "\n\n", "\t", "a", "Paris", "3", "1.5", "true", "None", "null", "[1]", '{"a": 1}', '"', "'", "\\", "\\n", "é", "🙂", "中文",
    ", ", ")", "]", "}", "=", ":", "<b>", "</p>", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```", "&lt;", "</function",
)  # fmt: skip
KINDS = ("string", "integer", "number", "boolean", "null", "array", "object")


def random_text(chance: random.Random) -> str:
    return "".join(chance.choice(PIECES) for _ in range(chance.choice((0, 1, 1, 2, 3, 6))))


def random_value(chance: random.Random, kind: str, depth: int = 0) -> Any:
    match kind:
        case "string":
            return random_text(chance)
        case "integer":
            return chance.choice((0, 1, -7, 10**12, chance.randrange(100)))
        case "number":
            return chance.choice((0.5, -1.25, 3.0, 1e-7, 2, chance.random()))
        case "boolean":
            return chance.random() < 0.5
        case "null":
            return None
    kinds = KINDS if depth < 2 else KINDS[:5]
    length = chance.choice((0, 1, 2, 3))
    if kind == "array":
        return [random_value(chance, chance.choice(kinds), depth + 1) for _ in range(length)]
    return {f"k{at}": random_value(chance, chance.choice(kinds), depth + 1) for at in range(length)}


def random_tools(chance: random.Random) -> Tools:
    def schema() -> dict[str, Any]:
        names = chance.sample(("city", "days", "code", "is_new", "file.path", "x-y", "Z"), chance.choice((0, 1, 2, 4)))
        return {"type": "object", "properties": {name: {"type": chance.choice(KINDS)} for name in names}}

    return Tools(tuple({"name": name, "parameters": schema()} for name in ("get", "get_time", "ns.do-it")))


def random_calls(chance: random.Random, tools: Tools, call_format: CallFormat) -> list[Call]:
    """Returns one to three calls that the format can write without ambiguity."""
    calls: list[Call] = []
    for _ in range(1 if call_format.is_single else chance.choice((1, 1, 2, 3))):
        function = chance.choice(tools.functions)
        arguments: dict[str, Any] = {}
        for key, schema in function["parameters"]["properties"].items():
            if chance.random() < 0.8:
                value = random_value(chance, schema["type"])
                while not is_writable(call_format, key, value):
                    value = random_value(chance, schema["type"])
                arguments[key] = value
        if isinstance(call_format.arguments, (TaggedArguments, KeywordArguments)):
            arguments = dict(call_format.arguments.scalars.ordered(arguments))
        calls.append((function["name"], arguments))
    return calls


def is_writable(call_format: CallFormat, key: str, value: Any) -> bool:
    """Returns whether the format tells where a string ends: where it stands as it is, it must not hold what ends it."""
    style = call_format.arguments
    if isinstance(style, JsonArguments):
        return True
    marks: list[str] = []
    if isinstance(style, TaggedArguments):
        end = style.end.rstrip() or style.end
        marks = [end] if len(end) > 1 else [style.end + style.separator, style.end + call_format.tail.strip()[:1]]
        if isinstance(value, str) and not style.quotes_strings:
            return all(mark not in (value + mark)[: len(value + mark) - 1] for mark in marks)
        return all(mark not in json.dumps(value) + repr(value) for mark in marks)
    assert isinstance(style, KeywordArguments)
    quote = style.scalars.quote

    def holds(text: str) -> bool:
        return any((text + quote + end).find(quote + end) < len(text) for end in (", ", ",", ")", "}", "]", ""))

    raw = [text for text in strings_in(value) if style.scalars.escapes == "none" and holds(text)]
    return not raw


def strings_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from strings_in(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from strings_in(each)


def dumped(arguments: dict[str, Any]) -> str:
    return json.dumps(arguments, ensure_ascii=False)


def written_calls(call_format: CallFormat, calls: Sequence[Call]) -> str:
    return call_format.write(
        [WrittenCall(name, arguments, id) for (name, arguments), id in zip(calls, IDS, strict=False)]
    )


def parse(
    tools: Tools, call_format: CallFormat, pieces: Sequence[str], is_cut: bool = False
) -> tuple[str, list[tuple[str, str]], bool]:
    """Returns the content, the calls with their arguments as text, and whether one is whole."""
    parser = CallParser(tools, call_format, "request")
    deltas: list[Delta] = [delta for piece in pieces for delta in parser.feed(piece)] + parser.finish(is_cut)
    content, calls = "", []
    for delta in deltas:
        if isinstance(delta, ContentDelta):
            content += delta.text
        elif delta.id:
            assert delta.index == len(calls)
            calls.append((delta.name, ""))
        else:
            assert delta.index == len(calls) - 1
            calls[-1] = (calls[-1][0], calls[-1][1] + delta.arguments)
    return content, calls, parser.has_whole_call


def check_round_trip(chance: random.Random, tools: Tools, call_format: CallFormat, is_thorough: bool = True) -> None:
    """Writes random calls and reads them, in pieces and cut anywhere."""
    calls = random_calls(chance, tools, call_format)
    text = written_calls(call_format, calls)
    before = chance.choice(("", "", "Well."))
    if before and not call_format.is_bare:
        text = before + call_format.text_separator + text
    else:
        before, text = "", call_format.lead + text
    whole = parse(tools, call_format, [text])
    content, found, has_whole_call = whole
    assert (content, [(name, json.loads(arguments)) for name, arguments in found]) == (before, calls), text
    assert has_whole_call
    cuts = sorted(chance.randrange(len(text) + 1) for _ in range(4))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parse(tools, call_format, pieces) == whole, text
    if is_thorough:
        assert parse(tools, call_format, list(text)) == whole, text
    for end in range(len(text)) if is_thorough else cuts:
        content, cut, _ = parse(tools, call_format, [text[:end]], is_cut=True)
        assert [name for name, _ in cut] == [name for name, _ in calls[: len(cut)]], text[:end]
        for (_, arguments), (_, complete) in zip(cut, found, strict=False):
            assert complete.startswith(arguments) or _is_number_cut(arguments, complete), (text[:end], arguments)
        assert call_format.is_bare or before.startswith(content.strip()), (text[:end], content)


def _is_number_cut(arguments: str, complete: str) -> bool:
    """Whether arguments end in the beginning of a word, which was read as all of it."""
    return complete.startswith(re.sub(r'("[^"]*"|[-+.\w]+)\Z', "", arguments))
