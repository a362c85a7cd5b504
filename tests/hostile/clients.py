"""Hostile clients of the gateway, as a campaign: no service dies, and a bystander's stream goes on.

python -m tests.hostile.clients [--cases PATTERN] [--clients N] [--scale N] [--list]

Each case runs with as many clients at a time against the same deployment: two coordinators, one gateway, tiny models. It
reports what each process uses before, at most during, and after it, and the bystander's longest gap. Exits with 1 if a process
has ended or the bystander was refused. `--scale 10`: each client sends ten times as much.
"""

import argparse
import asyncio
import contextlib
import fnmatch
import gzip
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from tests.hostile.bystander import Bystander, Sight, bystander
from tests.hostile.deployment import Deployment, Use, deployed

LOOK_INTERVAL_S = 0.1
# A client that gets no answer gives up.
PATIENCE_S = 60.0
# How long a client holds a connection of which it reads nothing.
HELD_S = 3.0
HEAD = b" HTTP/1.1\r\nhost: localhost\r\n"
GET = b"GET /health" + HEAD + b"\r\n"
POST = b"POST /v1/chat/completions" + HEAD + b"content-type: application/json\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n"
OFFER = b"connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAEAAEAAAAIAAAAB\r\n"
MESSAGES = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


class Client:
    """One hostile client, and the statuses that it gets."""

    def __init__(self, address: tuple[str, int], scale: int, statuses: Counter[str]) -> None:
        self._address = address
        self.scale = scale
        self._statuses = statuses

    async def post(self, path: str, body: Any, *, compressed: bool = True) -> None:
        """`body`: JSON, as an object or encoded."""
        data = body if isinstance(body, bytes) else orjson.dumps(body)
        if compressed:
            data = await asyncio.to_thread(gzip.compress, data, 1)
        coding = b"content-encoding: gzip\r\n" if compressed else b""
        head = POST.replace(b"/v1/chat/completions", path.encode()) + coding
        await self.send(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(data), data)

    async def send(self, *parts: bytes) -> None:
        """Sends the parts and reads to the end of the connection."""
        async with self.connected() as (reader, writer):
            for part in parts:
                writer.write(part)
                await writer.drain()
            answer = await reader.read()
            for each in answer.split(b"HTTP/1.1 ")[1:]:
                self._statuses[each[:3].decode()] += 1

    async def hold(self, *parts: bytes) -> None:
        """Sends the parts and reads nothing."""
        async with self.connected() as (_, writer):
            for part in parts:
                writer.write(part)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(HELD_S):
                    await writer.drain()
            await asyncio.sleep(HELD_S)
            self._statuses["held"] += 1

    @contextlib.asynccontextmanager
    async def connected(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        try:
            async with asyncio.timeout(PATIENCE_S):
                reader, writer = await asyncio.open_connection(*self._address)
                try:
                    yield reader, writer
                finally:
                    writer.transport.abort()
        except TimeoutError:
            self._statuses["no end"] += 1
        except OSError:
            self._statuses["closed"] += 1


async def many(client: Client, one: Callable[[], Awaitable[None]], count: int) -> None:
    """Does the same `count` times at once."""
    await asyncio.gather(*(one() for _ in range(count * client.scale)))


def chat(**fields: Any) -> dict[str, Any]:
    return {"messages": MESSAGES, "max_tokens": 1, **fields}


def repeated(name: str, value: bytes, num_bytes: int) -> bytes:
    """Returns a body with a list of as many values as fit."""
    return b'{"%s":[' % name.encode() + b",".join([value] * (num_bytes // (len(value) + 1))) + b"]}"


Case = Callable[[Client], Awaitable[None]]
# By name: what one client sends. Sizes are of scale 1.
CASES: dict[str, Case] = {
    "parser/connect": lambda c: c.send(b"CONNECT /x" + HEAD + b"\r\n"),
    "parser/connect offered": lambda c: c.send(GET, b"CONNECT /x" + HEAD + OFFER + b"\r\n" + GET),
    "parser/offers": lambda c: c.send((b"GET /health" + HEAD + OFFER + b"\r\n") * 2000 * c.scale),
    "parser/http 2": lambda c: c.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "parser/pipelined": lambda c: c.send(GET * 5000 * c.scale),
    "parser/noise": lambda c: c.send(bytes(range(256)) * 400 * c.scale),
    "headers/many": lambda c: c.send(b"GET /health" + HEAD + b"a: b\r\n" * 10_000 * c.scale + b"\r\n"),
    "headers/long": lambda c: c.send(b"GET /health" + HEAD + b"a: " + b"b" * 1_000_000 * c.scale),
    "headers/path": lambda c: c.send(b"GET /" + b"x" * 1_000_000 * c.scale),
    "headers/trailers": lambda c: c.send(CHUNKED + b"2\r\n{}\r\n0\r\n", b"a: b\r\n" * 300_000 * c.scale),
    "headers/extension": lambda c: c.send(CHUNKED + b"2;", b"x" * 2_000_000 * c.scale),
    "held/silent": lambda c: many(c, lambda: c.hold(), 20),
    "held/line end": lambda c: many(c, lambda: c.hold(b"\r\n"), 20),
    "held/head": lambda c: many(c, lambda: c.hold(b"GET /"), 20),
    "held/body": lambda c: many(c, lambda: c.hold(CHUNKED + b"2\r\n"), 20),
    "held/large bodies": lambda c: many(c, lambda: c.hold(CHUNKED + b"700000\r\n" + bytes(7_000_000)), 4),
    "held/page": lambda c: many(c, lambda: c.hold(b"".join([b"GET /static/page.js" + HEAD + b"\r\n"] * 60)), 20),
    "held/stream": lambda c: many(
        c,
        lambda: c.hold(
            POST + b"content-length: %d\r\n\r\n" % len(STREAM) + STREAM,
        ),
        2,
    ),
    "body/bomb": lambda c: c.post("/v1/chat/completions", b" " * 64_000_000 * c.scale),
    "body/deep": lambda c: c.post("/v1/chat/completions", b"[" * 1_000_000 * c.scale),
    "body/values": lambda c: c.post("/v1/responses", repeated("metadata", b"[]", 8_000_000)),
    "body/null keys": lambda c: c.post(
        "/v1/chat/completions", {f"k{at}": None for at in range(100_000 * c.scale)} | chat()
    ),
    "lists/messages": lambda c: c.post("/v1/chat/completions", repeated("messages", b"{}", 2_000_000)),
    "lists/token ids": lambda c: c.post("/v1/completions", repeated("prompt", b"1", 1_000_000 * c.scale)),
    "lists/prompts": lambda c: c.post("/v1/completions", repeated("prompt", b"[1]", 1_000_000 * c.scale)),
    "lists/allowed tools": lambda c: c.post("/v1/chat/completions", chat(
        tools=[TOOL] * 8000, tool_choice={"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOL] * 8000}}
    )),
    "lists/stops": lambda c: c.post("/v1/chat/completions", chat(stop=["x"] * 200_000 * c.scale)),
    "lists/biases": lambda c: c.post(
        "/v1/chat/completions", chat(logit_bias={str(at): 1 for at in range(100_000 * c.scale)})
    ),
    "lists/answers": lambda c: c.post(
        "/v1/responses", {"input": [{"role": "assistant", "content": "x" * 100}] * 16_000, "max_output_tokens": 1}
    ),
    "text/empty lines": lambda c: c.post("/v1/chat/completions", chat(grammar="\n" * 100_000 + "x ::= y")),
    "text/prompt": lambda c: c.post("/v1/completions", {"prompt": "x y " * 1_000_000, "max_tokens": 1}),
    "text/field": lambda c: c.post(
        "/v1/chat/completions", chat(tools=[{"type": "function", "function": {"name": "f", "a." * 100_000: 1}}])
    ),
}  # fmt: skip
STREAM = orjson.dumps(chat(max_tokens=400, n=16, stream=True, ignore_eos=True, logprobs=True, top_logprobs=20))


@dataclass(slots=True)
class Report:
    name: str
    num_clients: int
    statuses: Counter[str] = field(default_factory=Counter)
    before: dict[str, Use] = field(default_factory=dict)
    during: dict[str, Use] = field(default_factory=dict)
    after: dict[str, Use] = field(default_factory=dict)
    dead: dict[str, int] = field(default_factory=dict)
    bystander: Sight = field(default_factory=Sight)

    @property
    def has_passed(self) -> bool:
        return not self.dead and not self.bystander.faults

    def grown_bytes(self, name: str) -> int:
        """Returns by how much a process grew at most."""
        return self.during[name].resident_bytes - self.before[name].resident_bytes

    def __str__(self) -> str:
        verify_result = "passed" if self.has_passed else "FAILED"
        answers = ", ".join(f"{status} x {count}" for status, count in sorted(self.statuses.items()))
        lines = [
            f"{verify_result} {self.name}: {self.num_clients} clients: {answers}",
            f"  bystander: {self.bystander.num_texts} texts, longest gap {1e3 * self.bystander.longest_gap_s:.0f} ms",
        ]
        for name, before in self.before.items():
            uses = [before, self.during.get(name, before), self.after.get(name, before)]
            memory = " -> ".join(f"{each.resident_bytes / 2**20:.0f}" for each in uses)
            files = " -> ".join(str(each.num_files) for each in uses)
            lines.append(f"  {name}: {memory} MiB, {files} files")
        lines += [f"  {name} ended with {status}" for name, status in self.dead.items()]
        return "\n".join([*lines, *(f"  bystander: {each}" for each in self.bystander.faults[:5])])


async def attack(
    deployment: Deployment, beside: Bystander, name: str, case: Case, num_clients: int, scale: int = 1
) -> Report:
    """Runs one case."""
    report = Report(name, num_clients, before=deployment.use())
    report.during = dict(report.before)
    await beside.seen()
    looking = asyncio.create_task(_look(deployment, report))
    clients = [Client(deployment.host, scale, report.statuses) for _ in range(num_clients)]
    await asyncio.gather(*map(case, clients))
    report.bystander = await beside.seen()
    looking.cancel()
    report.after, report.dead = deployment.use(), deployment.dead()
    return report


async def _look(deployment: Deployment, report: Report) -> None:
    while True:
        for name, now in deployment.use().items():
            most = report.during[name]
            report.during[name] = Use(max(most.resident_bytes, now.resident_bytes), max(most.num_files, now.num_files))
        await asyncio.sleep(LOOK_INTERVAL_S)


async def run(names: list[str], num_clients: int, scale: int) -> int:
    """Returns the exit status."""
    num_failed = 0
    with tempfile.TemporaryDirectory() as folder:
        async with deployed(Path(folder)) as deployment, bystander(deployment.url) as beside:
            for name in names:
                report = await attack(deployment, beside, name, CASES[name], num_clients, scale)
                num_failed += not report.has_passed
                print(report, flush=True)
                if report.dead:
                    break
    print(f"{num_failed} of {len(names)} cases failed")
    return int(num_failed > 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", default="*", help="e.g. 'lists/*'; names as --list prints them")
    parser.add_argument("--clients", type=int, default=16, help="of one case at a time")
    parser.add_argument("--scale", type=int, default=1, help="how many times as much each client sends")
    parser.add_argument("--list", action="store_true", help="print the cases' names, and run none")
    arguments = parser.parse_args()
    names = fnmatch.filter(CASES, arguments.cases)
    if arguments.list:
        print("\n".join(names))
        return
    sys.exit(asyncio.run(run(names, arguments.clients, arguments.scale)))


if __name__ == "__main__":
    main()
