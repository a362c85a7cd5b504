"""Formats and tools that nobody should send, through every API of a running deployment.

python -m tests.hostile.grammars [--cases 20000] [--seed 0]

Mutates schemas, regular expressions, grammars and lists of tools by their structure: depth, counts, numbers at the edges,
odd texts, references in chains and cycles. Exits with 1 if a service dies, an answer is a 5xx, a bystander's tokens change,
or the coordinator's event loop is blocked for over a second. The same seed sends the same cases.
"""

import argparse
import asyncio
import contextlib
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import httpx2
import psutil

from paceline.client import AsyncClient
from paceline.errors import InvalidArgument, ResourceExhausted
from paceline.output_format import OutputFormat
from paceline.rpc.health import instance_at
from paceline.sampling_params import SamplingParams
from paceline.v1 import generation_pb2, generation_pb2_grpc
from tests.formats import make_schema
from tests.fuzz.__main__ import flags
from tests.fuzz.watch import Bystander, LogWatch, tokens_alone
from tests.services import Trio, free_port, running, spawn_service, start_trio

AT_ONCE = 6
MAX_TOKENS = 24
MAX_LAG_S = 1.0
EDGES: list[Any] = [
    0, -1, 1, 2**31, 2**53 + 1, -(2**53) - 1, 2**63 - 1, 2**63, -(2**63), 2**64, 10**30, 1e308, -1e308, 5e-324, 0.1, 1.0,
    True, None, "", "\x00", "\ud800", "\u202e", "é" * 50, "a" * 3000, [], {}, [[]], "1e400",
]  # fmt: skip
REGEXES = [
    "a?" * 12_000, "((a{1000}){1000}){1000}", "(a|b|ab)*c" * 50, "(.*a){20}", "[" * 3000, "(" * 5000, "a{0,65535}", r"(a)\1", "(?=x)y",
    r"\p{L}{0,500}\p{Lu}{3,50}", "(?i)" + "k" * 400, "((((((a?)?)?)?)?)?)*" * 40, "^" * 1000 + "$" * 1000, "[^\\s]{2,9000}x", "\\", "(?s:.*)" * 30,
    "a{900000000,999999999}", "[\u4e00-\u51ff]" + "a" * 4000, "^" * 100_000, "[a-z]" + "()" * 9000,
]  # fmt: skip
LARKS = [
    "start: start", "start: a\na: a a | /[a-z]/", "start: missing", "%%%", 'start: "a"{5000}', "start: @x", "start: <[5]>", "start: <[^5]>*",
    "start: r0\n" + "".join(f"r{at}: r{at + 1}\n" for at in range(3000)) + 'r3000: "a"\n',
    "start: r0\n" + "".join(f"r{at}: r{at + 1} r{at + 1}\n" for at in range(24)) + 'r24: "ab"\n',
    "start: R0\n" + "".join(f"R{at}: R{at + 1} R{at + 1}\n" for at in range(24)) + 'R24: "ab"\n',
    'start: "x" | "b" R\nR: /a{100000}/', "start: " + "(" * 300 + '"a"' + ")" * 300, "start: %json {" + '"a":[' * 500, 'root ::= "a" | root',
    "start: A*\nA: /[a-z]+/ & ~(/[ab]*a[ab]{9}b[ab]*/)", "start: x\n" * 3000, 'start: "' + "word " * 3000 + '"',
]  # fmt: skip


def chain(length: int, is_cyclic: bool = False) -> dict[str, Any]:
    links = {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(length)}
    return {
        "$ref": "#/$defs/d0",
        "$defs": links | {f"d{length}": {"$ref": "#/$defs/d0"} if is_cyclic else {"type": "string"}},
    }


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "boolean"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


# Each has ended or frozen a process that compiles what clients send.
KILLERS: dict[str, dict[str, Any]] = {
    "chain of references": {"json_schema": chain(3000)},
    "least integer": {"grammar": f'start: %json {{"const": {-(2**63)}}}'},
    "chain of rules": {"grammar": LARKS[8]},
    "optional letters": {"regex": REGEXES[0]},
    "nested repeats": {"regex": REGEXES[1]},
    "multiple of a large number": {"grammar": 'start: %json {"type": "integer", "multipleOf": 1000003}'},
}
SEEDS: list[Callable[[random.Random], Any]] = [
    lambda coin: chain(coin.choice([3, 100, 400, 2000]), coin.random() < 0.3),
    lambda coin: nested(coin.choice([5, 40, 70, 200, coin.randrange(300, 450)])),
    lambda coin: {"enum": [f"value {number}" for number in range(coin.choice([10, 1000, 8000]))]},
    lambda coin: {"type": "object", "properties": {f"p{at}": make_schema(coin, 2) for at in range(coin.choice([5, 60, 300]))}},
    lambda coin: {"type": "string", "pattern": coin.choice(REGEXES)},
    lambda coin: {"type": "integer", coin.choice(["minimum", "maximum", "multipleOf"]): coin.choice(EDGES)},
    lambda coin: {"type": "array", "items": make_schema(coin, 1), coin.choice(["minItems", "maxItems"]): coin.choice([3, 1000, 10**6, 10**12])},
    lambda coin: {"anyOf": [make_schema(coin, 2) for _ in range(coin.choice([2, 50, 300]))]},
    lambda coin: {coin.choice(["const", "default", "enum", "type", "allOf", "not", "$ref", "patternProperties"]): coin.choice(EDGES)},
]  # fmt: skip


def make_hostile_schema(coin: random.Random) -> Any:
    schema = coin.choice([make_schema, make_schema, *SEEDS])(coin)
    for _ in range(coin.choice([0, 1, 1, 2, 5])):
        schema = mutated(coin, schema)
    return schema


def mutated(coin: random.Random, value: Any, depth: int = 0) -> Any:
    """Changes one place: a key, a value, a count or a reference."""
    if depth > 40 or not isinstance(value, dict | list) or not value or coin.random() < 0.15:
        return coin.choice(
            [
                coin.choice(EDGES),
                {"$ref": "#"},
                {"$ref": "#/$defs/d0"},
                [value] * coin.choice([2, 50]),
                {"not": value},
                {"allOf": [value, value]},
            ]
        )
    if isinstance(value, list):
        at = coin.randrange(len(value))
        return [*value[:at], mutated(coin, value[at], depth + 1), *value[at + 1 :]]
    key = coin.choice(list(value))
    if coin.random() < 0.1:
        return {
            **value,
            coin.choice([str(coin.choice(EDGES)), "additionalProperties", "pattern", "x-guidance"]): value[key],
        }
    return {**value, key: mutated(coin, value[key], depth + 1)}


def make_hostile_text(coin: random.Random, seeds: list[str]) -> str:
    text = coin.choice(seeds)
    for _ in range(coin.choice([0, 0, 1, 3])):
        at = coin.randrange(len(text) + 1)
        chunk = text[at : at + coin.choice([1, 5, 200])]
        text = (
            text[:at]
            + coin.choice(
                [chunk * coin.choice([2, 40]), coin.choice('(){}[]*+?|&~\\/"\n\ud800'), "{0,1000}", "(?:" * 90]
            )
            + text[at + coin.choice([0, len(chunk)]) :]
        )
    return text[: 1 << 18]


def make_case(coin: random.Random) -> dict[str, Any]:
    """Returns one of json_schema, regex, choice, grammar and tools."""
    match coin.choice(["json_schema", "json_schema", "json_schema", "regex", "grammar", "choice", "tools", "tools"]):
        case "json_schema":
            return {"json_schema": make_hostile_schema(coin)}
        case "regex":
            return {"regex": make_hostile_text(coin, REGEXES)}
        case "grammar":
            return {"grammar": make_hostile_text(coin, LARKS)}
        case "choice":
            return {"choice": [f"{coin.random()}" * coin.choice([1, 20]) for _ in range(coin.choice([1, 100, 4000]))]}
        case _:
            schemas = [make_hostile_schema(coin) for _ in range(coin.choice([1, 1, 1, 2, 4, 100]))]
            return {"tools": [{"name": f"tool_{at}", "parameters": each} for at, each in enumerate(schemas)]}


def bodies(case: dict[str, Any], coin: random.Random) -> tuple[str, dict[str, Any]]:
    """Returns the path and body of one of the APIs that take the case."""
    plain = {"max_tokens": MAX_TOKENS, "seed": coin.randrange(2**31)}
    chat = {**plain, "messages": [{"role": "user", "content": "t1"}]}
    ((kind, value),) = case.items()
    if kind == "tools":
        choice = coin.choice(["auto", "required"])
        return coin.choice([
            ("/v1/chat/completions", {**chat, "tools": [{"type": "function", "function": each} for each in value], "tool_choice": choice}),
            ("/v1/messages", {"model": "", **chat, "tools": [{"name": each["name"], "input_schema": each["parameters"]} for each in value], "tool_choice": {"type": "any"}}),
            ("/v1/responses", {"input": "t1", "max_output_tokens": MAX_TOKENS, "tools": [{"type": "function", **each} for each in value], "tool_choice": choice}),
        ])  # fmt: skip
    more: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": "t1", **plain, f"guided_{kind.removesuffix('_schema')}": value}),
        ("/v1/chat/completions", {**chat, "structured_outputs": {kind.removesuffix("_schema"): value}}),
    ]
    if kind == "json_schema":
        named = {"name": "n", "schema": value, "strict": coin.random() < 0.3}
        more += [
            ("/v1/chat/completions", {**chat, "response_format": {"type": kind, kind: named}}),
            ("/v1/responses", {"input": "t1", "max_output_tokens": MAX_TOKENS, "text": {"format": {"type": kind, **named}}}),
        ]  # fmt: skip
    return coin.choice(more)


@dataclass(slots=True)
class Deployment:
    trio: Trio
    url: str
    found: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    longest_lag_s: float = 0.0
    # Of this, what the event loop itself computed at most.
    most_computed_s: float = 0.0

    @property
    def lag(self) -> str:
        return f"longest lag {1e3 * self.longest_lag_s:.0f} ms, of which computed {1e3 * self.most_computed_s:.0f} ms"

    async def send(self, http: httpx2.AsyncClient, case: dict[str, Any], coin: random.Random) -> None:
        if "tools" not in case and coin.random() < 0.2:
            await self.send_by_grpc(case)
            return
        path, body = bodies(case, coin)
        content = json.dumps(body).encode()
        if coin.random() < 0.05:
            # No number of Python's.
            content = content.replace(b'"1e400"', b"1e400")
        try:
            status = (
                await http.post(self.url + path, content=content, headers={"Content-Type": "application/json"})
            ).status_code
        except httpx2.HTTPError as error:
            status, content = 599, f"{error!r} {content[:2000]!r}".encode()
        self.found[f"{path} {status}"] += 1
        if status >= 500:
            self.violations.append(f"{status} from {path}: {content[:2000]!r}")

    async def send_by_grpc(self, case: dict[str, Any]) -> None:
        ((kind, value),) = case.items()
        try:
            wanted = OutputFormat.of_schema(value) if kind == "json_schema" else OutputFormat(**{kind: tuple(value) if kind == "choice" else value})  # fmt: skip
            async with AsyncClient(self.trio.address) as client:
                await client.complete("t1", SamplingParams(max_tokens=MAX_TOKENS), format=wanted)
            self.found["gRPC ok"] += 1
        except (InvalidArgument, ResourceExhausted) as error:
            self.found[f"gRPC {type(error).__name__}"] += 1
        except Exception as error:
            self.violations.append(f"{error!r} by gRPC: {str(case)[:2000]}")

    def probe(self, is_over: threading.Event) -> None:
        """Measures how long the coordinator's event loop takes to answer. On a thread: making cases takes long too."""
        pid = self.trio.coordinator.process.pid
        with grpc.insecure_channel(self.trio.address) as channel:
            describe = generation_pb2_grpc.GenerationStub(channel).Describe
            while not is_over.wait(0.02):
                began_s, computed_s = time.monotonic(), _loop_seconds(pid)
                describe(generation_pb2.DescribeRequest())
                self.longest_lag_s = max(self.longest_lag_s, time.monotonic() - began_s)
                self.most_computed_s = max(self.most_computed_s, _loop_seconds(pid) - computed_s)


def _loop_seconds(pid: int) -> float:
    """Returns what a process's first thread, its event loop, has computed: on a busy machine it also waits for a core."""
    [loop] = [each for each in psutil.Process(pid).threads() if each.id == pid]
    return loop.user_time + loop.system_time


@contextlib.asynccontextmanager
async def watched(deployment: Deployment) -> AsyncIterator[None]:
    """Adds what goes wrong beside the cases to the violations."""
    trio = deployment.trio
    alone = await tokens_alone(trio.address)
    logs, bystander = (
        LogWatch({each.log for each in (trio.draft, trio.target, trio.coordinator)}),
        Bystander(trio.address),
    )
    beside, is_over = asyncio.create_task(bystander.run(alone)), threading.Event()
    probe = asyncio.create_task(asyncio.to_thread(deployment.probe, is_over))
    try:
        yield
    finally:
        bystander.end()
        is_over.set()
        ended = await asyncio.gather(beside, probe, return_exceptions=True)
        broken = [repr(each) for each in ended if isinstance(each, Exception)]
        dead = [each.module for each in (trio.draft, trio.target, trio.coordinator) if each.process.poll() is not None]
        deployment.violations += [*broken, *bystander.faults, *logs.alarms(), *(f"{each} has ended" for each in dead)]


@contextlib.contextmanager
def started(folder: Path) -> Any:
    of_model = flags(folder)
    with start_trio(folder, of_model, of_model) as trio:
        listen = f"127.0.0.1:{free_port()}"
        gateway = spawn_service("gateway", folder, "--coordinators", trio.address, address=listen)
        with running(gateway):
            while instance_at(listen) is None:
                assert gateway.process.poll() is None, gateway.log.read_text()
                time.sleep(0.05)
            yield Deployment(trio, f"http://{listen}")


async def attack(deployment: Deployment, count: int, seed: int) -> None:
    """Sends `count` cases, several at once, or as many as come before the first violation."""
    numbers = iter(range(count))

    async def work(http: httpx2.AsyncClient) -> None:
        for number in numbers:
            if deployment.violations:
                return
            coin = random.Random(f"{seed} {number}")
            case = coin.choice(list(KILLERS.values())) if coin.random() < 0.02 else make_case(coin)
            await deployment.send(http, case, coin)
            if number % 500 == 499:
                print(number + 1, deployment.lag, flush=True)

    async with watched(deployment), httpx2.AsyncClient(timeout=120, verify=False) as http:
        await asyncio.gather(*(work(http) for _ in range(AT_ONCE)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    # Making cases must not keep the probe from the interpreter for long.
    sys.setswitchinterval(0.0005)
    with tempfile.TemporaryDirectory(prefix="paceline-grammars-") as folder, started(Path(folder)) as deployment:
        asyncio.run(attack(deployment, arguments.cases, arguments.seed))
        if deployment.longest_lag_s > MAX_LAG_S:
            deployment.violations.append(f"the coordinator did not answer for {deployment.longest_lag_s:.2f} s")
        for answer, times in sorted(deployment.found.items()):
            print(f"{answer}: {times:,}")
        print(f"{deployment.lag}, violations: {len(deployment.violations)}")
        print(*deployment.violations[:10], sep="\n")
    sys.exit(bool(deployment.violations))


if __name__ == "__main__":
    main()
