"""Files that an agent has read, written back by a tool call: what tool-result lookup gains, in turns.

python -m benchmarks.tool_calls [--count 20] [--tokens 256] [--target M] [--draft M] [--numbered] [--temperature 0] [--in-message]

Each file of this repository is returned with one change, inside a JSON string. `without` is the default at a second
coordinator, in front of the same servers, that looks up nothing in tool results. Decoding alone: times start at the
first token.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
from collections.abc import AsyncIterator
from typing import Any

from benchmarks.deployment import DRAFT, MODEL, embedded_pair
from benchmarks.editing import MOST_LINES, ROOT, TASKS, Totals, tell
from paceline.client import AsyncClient
from paceline.errors import Unavailable
from paceline.loadtest.workload import OFF
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams

REMINDER = "Now write the whole file, without line numbers."
DEFAULT, WITHOUT = "default", "without"
_WITHOUT = """
from coordinator.__main__ import main
from coordinator.tools import tool_results
tool_results.MAX_TOKENS = 0
main()
"""


def tool(name: str, *arguments: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {each: {"type": "string"} for each in arguments},
        "required": list(arguments),
        "additionalProperties": False,
    }
    return {"type": "function", "function": {"name": name, "description": f"{name}s a file", "parameters": parameters}}


TOOLS = [tool("read", "path"), tool("write", "path", "content")]


def chat_of(path: str, change: str, is_numbered: bool, is_in_message: bool) -> list[dict[str, Any]]:
    lines = (ROOT / path).read_text().splitlines()[:MOST_LINES]
    if is_numbered:
        lines = [f"{number:6d}\t{line}" for number, line in enumerate(lines, start=1)]
    if is_in_message:
        file = "\n".join(lines)
        return [
            {"role": "user", "content": f"{change} in {path}, change nothing else.\n```{path}\n{file}\n```\n{REMINDER}"}
        ]
    call = {"id": "call_1", "name": "read", "arguments": json.dumps({"path": path})}
    return [
        {"role": "user", "content": f"{change} in {path}, change nothing else."},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "\n".join(lines), "tool_call_id": "call_1"},
        {"role": "user", "content": REMINDER},
    ]


@contextlib.asynccontextmanager
async def second_coordinator(addresses: dict[str, str]) -> AsyncIterator[AsyncClient]:
    address = f"{addresses['coordinator'].removesuffix('.sock')}-without.sock"
    flags = ["--listen", address, "--target", addresses["target"], "--draft", addresses.get("draft", "none")]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WITHOUT, *flags, "--suffix-cache-tokens", "0", stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with AsyncClient(address) as client, asyncio.timeout(60):
            while True:
                with contextlib.suppress(Unavailable):
                    await client.describe()
                    break
                await asyncio.sleep(0.2)
        async with AsyncClient(address) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=len(TASKS))
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--target", default=MODEL)
    parser.add_argument("--draft", default=DRAFT)
    parser.add_argument("--numbered", action="store_true", help="as Claude Code and opencode show files")
    parser.add_argument("--in-message", action="store_true", help="the user's message has the file, as gptme sends it")
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()
    sampling = SamplingParams(max_tokens=arguments.tokens, temperature=arguments.temperature, seed=1)
    order = random.Random(0)
    async with (
        embedded_pair(arguments.draft, remembers=False, target={"model": arguments.target}) as (services, client),
        second_coordinator(services.addresses) as other,
    ):
        clients = {OFF: client, WITHOUT: other, DEFAULT: client}
        totals = {name: Totals() for name in clients}
        for number, task in enumerate((TASKS[0], *TASKS[: arguments.count])):
            texts = set()
            for name in order.sample(list(clients), len(clients)):
                completion = await clients[name].complete(
                    chat_of(*task, arguments.numbered, arguments.in_message),
                    sampling,
                    SpeculationParams(enabled=name != OFF),
                    tools=TOOLS,
                    tool_choice="write",
                )
                texts.add(tuple(completion.token_ids))
                # Costs are learned once in a coordinator's life.
                if number > 0:
                    totals[name].add(completion)
            assert len(texts) == 1, f"texts differ: {texts}"
            print(f"{task[0]}: {len(completion.token_ids)} tokens", flush=True)
    tell(totals)


if __name__ == "__main__":
    asyncio.run(main())
