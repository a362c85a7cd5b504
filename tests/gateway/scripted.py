"""A gateway whose coordinator answers with the rounds that a test gives."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import orjson

from gateway.dialects.dialect import Dialect, EventStream
from gateway.requests import HttpRequest, Serving
from gateway.resumed_generation import Generation
from paceline.results import Chunk, Deployment, Finish, Model, Speculation, Timing, TokenLogprobs, ToolCallDelta
from paceline.speculation_params import SpeculationParams

MODEL = Model("tiny", "float32", "none", "own", "float32", "cpu", 99, 64, True)
SERVING = Serving(Deployment(MODEL, None, SpeculationParams(), 0, 1, "0"), {}, "auto")
SPECULATION = Speculation(0, 0, 0, [], [], 1.0)
TIMING = Timing(0, 0, 0, 0, 0, 0)


def end(reason: str = "stop", **more: Any) -> Finish:
    return Finish(reason, 9, 4, 7, 1, SPECULATION, TIMING, reasoning_tokens=2, **more)


def chunk(
    text: str = "",
    calls: Sequence[ToolCallDelta] = (),
    reasoning: str = "",
    finish: Finish | None = None,
    logprobs: Sequence[TokenLogprobs] = (),
) -> Chunk:
    """Returns a round with a token, of a prompt of 9 tokens of which 4 were cached."""
    return Chunk(
        text, [1], "T", [len(text)], reasoning=reasoning, tool_calls=list(calls), prompt_tokens=9,
        cached_prompt_tokens=4, finish=finish, logprobs=list(logprobs),
    )  # fmt: skip


class ScriptedGeneration(Generation):
    def __init__(self, request: HttpRequest, rounds: Sequence[Chunk | Exception]) -> None:
        self.request = request
        self.model = "tiny"
        self._script = rounds

    async def rounds(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        for each in self._script:
            if isinstance(each, Exception):
                raise each
            yield 0, each


async def stream(dialect: Dialect, body: dict[str, Any], rounds: Sequence[Chunk | Exception]) -> list[dict[str, Any]]:
    """Returns the events' bodies, each with its name as `event`."""
    asked = dialect.parse({**body, "stream": True}, SERVING)
    sent: list[bytes] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body", b""))

    await EventStream(dialect.reply(ScriptedGeneration(asked, rounds)), dialect, {}, send).run()
    return [read_event(each) for each in b"".join(sent).decode().split("\n\n") if each]


def read_event(text: str) -> dict[str, Any]:
    fields = dict(line.split(": ", 1) for line in text.split("\n"))
    return {"event": fields.get("event"), **orjson.loads(fields["data"])}


async def whole(dialect: Dialect, body: dict[str, Any], rounds: Sequence[Chunk | Exception]) -> dict[str, Any]:
    return await dialect.reply(ScriptedGeneration(dialect.parse(body, SERVING), rounds)).whole()
