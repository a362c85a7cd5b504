"""Checks that the calls that a format writes are the calls that its parser reads."""

import json
from collections.abc import Sequence

from coordinator.tools.call_arguments.schema_types import type_of
from coordinator.tools.call_arguments.style import Arguments
from coordinator.tools.call_formats import CallFormat
from coordinator.tools.call_parser import CallParser, ContentDelta
from coordinator.tools.offered_tools import Tools


def reads_back(call_format: CallFormat, calls: Sequence[tuple[str, Arguments]], text: str) -> bool:
    """Returns whether a text is read as these calls and nothing else, by tools whose schemas have their types."""
    properties = {key: {"type": type_of(value)} for _, arguments in calls for key, value in arguments.items()}
    names = dict.fromkeys(name for name, _ in calls)
    parser = CallParser(
        Tools(tuple({"name": name, "parameters": {"properties": properties}} for name in names)), call_format, ""
    )
    read: list[tuple[str, list[str]]] = []
    for delta in (*parser.feed(text), *parser.finish()):
        if isinstance(delta, ContentDelta):
            return False
        if delta.id:
            read.append((delta.name, []))
        read[delta.index][1].append(delta.arguments)
    try:
        return [(name, json.loads("".join(pieces))) for name, pieces in read] == list(calls)
    except ValueError:
        return False
