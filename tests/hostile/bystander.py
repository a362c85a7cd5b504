"""A client that streams while others attack, in a process of its own: what attackers compute must not look like a gap.

python -m tests.hostile.bystander URL

Prints a report as JSON for each line of its standard input.
"""

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field

import httpx2
import orjson

BODY = {"prompt": "t1 t2 t3", "max_tokens": 64, "ignore_eos": True, "seed": 5, "stream": True}


@dataclass(slots=True)
class Sight:
    """What a bystander has seen."""

    num_texts: int = 0
    longest_gap_s: float = 0.0
    # What it was told in place of its text, or another text than the first.
    faults: list[str] = field(default_factory=list)


class Bystander:
    """The process, while it runs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._asking, self._answers = process.stdin, process.stdout

    async def seen(self) -> Sight:
        """Returns what it has seen since the last call, after two texts at least."""
        self._asking.write(b"\n")
        return Sight(**json.loads(await self._answers.readline()))


@contextlib.asynccontextmanager
async def bystander(url: str) -> AsyncIterator[Bystander]:
    """Streams the same text again and again, a connection each."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-m", "tests.hostile.bystander", url)
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    try:
        beside = Bystander(process)
        await beside.seen()
        yield beside
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def watch(url: str) -> None:
    """Reports at each line of standard input."""
    sight, first = Sight(), ""
    asked = asyncio.create_task(asyncio.to_thread(sys.stdin.readline))
    while True:
        try:
            async with httpx2.AsyncClient(base_url=url, timeout=600) as http:
                text = await _read(http, sight)
        except (httpx2.HTTPError, RuntimeError) as error:
            sight.faults.append(repr(error))
            await asyncio.sleep(0.1)
        else:
            first = first or text
            if text != first:
                sight.faults.append(f"another text: {text!r:.80}")
            sight.num_texts += 1
        if asked.done() and sight.num_texts + len(sight.faults) >= 2:
            print(json.dumps(asdict(sight)), flush=True)
            sight, asked = Sight(), asyncio.create_task(asyncio.to_thread(sys.stdin.readline))


async def _read(http: httpx2.AsyncClient, sight: Sight) -> str:
    text, seen_s = "", time.monotonic()
    async with http.stream("POST", "/v1/completions", json=BODY) as response:
        if response.status_code != 200:
            raise RuntimeError(f"status {response.status_code}")
        async for line in response.aiter_lines():
            now_s = time.monotonic()
            sight.longest_gap_s, seen_s = max(sight.longest_gap_s, now_s - seen_s), now_s
            if line.startswith("data: {"):
                event = orjson.loads(line.removeprefix("data: "))
                if "error" in event:
                    raise RuntimeError(event["error"]["message"])
                text += "".join(each["text"] for each in event["choices"])
    return text


if __name__ == "__main__":
    asyncio.run(watch(sys.argv[1]))
