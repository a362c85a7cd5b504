"""Shortens what clients sent, for tests that need no client (tests/gateway/test_recorded.py)."""

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.clients.clients import Client
from tests.clients.harness import Exchange, Run

FOLDER = Path(__file__).parents[1] / "gateway" / "recorded"
# Situations that differ in what clients send.
RECORDED = ("two calls", "cut")
MAX_CHARACTERS = 200
TOOLS_OF_A_TYPE = 2


def record(client: Client, runs: Mapping[str, Run]) -> None:
    """Writes shortened requests: a conversation, and the request that sends back a call that was cut."""
    conversation, after_cut = (list(_main_requests(runs[name])) for name in RECORDED)
    requests = {"conversation": conversation, "after a cut": after_cut[-1:] if len(after_cut) > 1 else []}
    recorded = {name: list(map(_shortened, each)) for name, each in requests.items() if each}
    path = FOLDER / f"{client.name.replace(' ', '_')}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


def _main_requests(run: Run) -> Iterator[Exchange]:
    """Leaves out requests for titles and the like."""
    for each in run.exchanges:
        if isinstance(each.body, dict) and bool(each.body.get("tools")) == run.script.has_tools:
            yield each


def _shortened(exchange: Exchange) -> dict[str, Any]:
    return {"path": exchange.path, "body": _short({**exchange.body, "tools": _few(exchange.body.get("tools"))})}


def _few(tools: Any) -> Any:
    if not isinstance(tools, list):
        return tools
    seen: dict[str, int] = defaultdict(int)
    few = []
    for tool in tools:
        kind = tool.get("type", "")
        seen[kind] += 1
        if seen[kind] <= TOOLS_OF_A_TYPE:
            few.append({**tool, "tools": _few(tool["tools"])} if "tools" in tool else tool)
    return few


def _short(value: Any) -> Any:
    match value:
        case str():
            # The machine is nobody's business.
            text = re.sub(r"/tmp/client-\w+", "/home/user", value)
            return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "…"
        case list():
            return [_short(each) for each in value]
        case dict():
            return {key: _short(each) for key, each in value.items()}
    return value
