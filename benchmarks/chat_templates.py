"""How real chat templates write calls: the format found in each, and round trips through it.

python -m benchmarks.chat_templates FOLDER [--calls 20] [--only NAME] [--distinct]

FOLDER has templates as *.jinja. Each is rendered with the embedded model's tokenizer, whose tokens do not matter here.
A round trip renders random calls with the template, finds in its text what the format writes, reads that in random pieces
and compares. `--distinct` checks each format once, however many templates show it (`--calls 10000`: some minutes).
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from coordinator.tokenizer import Tokenizer
from coordinator.tools.call_formats import CallFormat
from coordinator.tools.call_probe import FoundCalls, find_calls
from coordinator.tools.chats import Chats
from coordinator.tools.tool_messages import Call, Message, renders_tools
from paceline.errors import ConfigError, InvalidArgument
from target_server.tokenizer_source import load_tokenizer_files
from tests.coordinator.tools.random_calls import (
    IDS,
    check_round_trip,
    dumped,
    random_calls,
    random_tools,
    written_calls,
)

MODEL = "smollm2-135m"
# Templates that write descriptions and types refuse tools without.
_TOOL = {
    "type": "function",
    "function": {"name": "x", "description": "x", "parameters": {"type": "object", "properties": {"a": {"type": "string", "description": "x"}}, "required": ["a"]}},
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--calls", type=int, default=20, help="round trips of each template")
    parser.add_argument("--only", default="", help="templates with this in their names")
    parser.add_argument("--distinct", action="store_true", help="check each format once")
    given = parser.parse_args()
    files = {name: data for name, data in load_tokenizer_files(MODEL).items() if name != "chat_template.jinja"}
    seen = set[CallFormat]()
    counts = Counter[str]()
    for path in sorted(given.folder.glob("*.jinja")):
        if given.only not in path.name:
            continue
        for kind, line in check(path, files, given.calls, seen if given.distinct else None):
            counts[kind] += 1
            print(f"{path.stem[:46]:46}  {line}", flush=True)
    print(", ".join(f"{kind}: {count}" for kind, count in counts.most_common()))


def check(
    path: Path, files: dict[str, bytes], num_calls: int, seen: set[CallFormat] | None
) -> Iterator[tuple[str, str]]:
    """Yields what became of a template, as a kind and a row of the table."""
    if b"tool" not in path.read_bytes():
        # Loading a tokenizer takes most of the time.
        yield "no tools", "renders no tools"
        return
    try:
        tokenizer = Tokenizer(files | {"chat_template.jinja": path.read_bytes()})
    except ConfigError as error:
        yield "unreadable", f"can't be read: {error}"
        return
    if not renders_tools(tokenizer.render_chat):
        yield "no tools", "renders no tools"
        return
    start = time.perf_counter()
    found = find_calls(tokenizer.render_chat, tokenizer.chat_template or "", {})
    probe_ms = 1e3 * (time.perf_counter() - start)
    if found.format is None:
        yield "refused", f"refused: {found.problem}".replace("\n", " ")[:240]
        return
    shape = replace(found.format, name="", lead="", text_separator="")
    if seen is not None and shape in seen:
        return
    if seen is not None:
        seen.add(shape)
    passed, failure = round_trips(tokenizer, found, num_calls)
    kind = "drops calls, known by a mark" if found.drops_calls else "found"
    yield (
        (kind if passed == num_calls else "failed"),
        f"{found.format.name[:72]:72} {probe_ms:4.0f} ms  {passed} of {num_calls} {failure}",
    )


def round_trips(tokenizer: Tokenizer, found: FoundCalls, num_calls: int) -> tuple[int, str]:
    """Returns how many of the round trips passed, and what went wrong first."""
    assert found.format is not None
    chats = Chats(tokenizer)
    chance, passed, failure = random.Random(3), 0, ""
    for at in range(num_calls):
        tools = random_tools(chance)
        try:
            check_round_trip(chance, tools, found.format, is_thorough=at < 20)
            if at < 20 and not found.drops_calls:
                calls = random_calls(chance, tools, found.format)
                message = Message(
                    "assistant",
                    "",
                    tuple(Call(id, name, dumped(each)) for (name, each), id in zip(calls, IDS, strict=False)),
                )
                chat, _ = chats.template_input([Message("user", "x"), message], tools)
                text = tokenizer.render_chat(chat, {"tools": [_TOOL]})
                assert written_calls(found.format, calls) in text, text[-400:]
            passed += 1
        except (AssertionError, ValueError, InvalidArgument) as error:
            failure = failure or repr(error)[:300]
    return passed, failure


if __name__ == "__main__":
    main()
