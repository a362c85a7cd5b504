"""The rounds of a request's generations, from the coordinators that make them."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
from starlette.types import Receive, Send

from gateway.errors import NO_RENAMES, FieldNames, error_body
from gateway.requests import HttpRequest
from gateway.router import Coordinators, ReplayBuffer
from gateway.telemetry import GenerationTimer, current, record_failure
from paceline.client import AsyncClient, Prompt
from paceline.errors import PacelineError
from paceline.noise import fresh_seed
from paceline.results import Piece, TokenLogprobs

# Of a prompt, what decides which coordinator gets it.
PREFIX_CHARACTERS = 512
# Of several prompts, rounds that wait for a slow reader; a coordinator holds what is behind them.
MAX_QUEUED_ROUNDS = 64
Waiting = asyncio.Queue[tuple[int, Piece | BaseException | None]]


def routing_prefix(prompt: Prompt) -> str:
    """By which prompts that begin alike are known."""
    # A token id takes up to eight characters of a list's text.
    return str(prompt if isinstance(prompt, str) else prompt[:64])[:PREFIX_CHARACTERS]


async def as_rounds(pieces: AsyncGenerator[Piece, None], scores_prompt: bool) -> AsyncGenerator[Piece, None]:
    """Pieces that are rounds. With `scores_prompt` each choice's first one has the prompt's log-probabilities: they come
    with the first choice alone, of a long prompt in pieces ahead; rounds of others wait for them."""
    of_prompt: list[TokenLogprobs] = []
    is_scored, waiting = not scores_prompt, list[Piece]()
    begun: set[int] = set()

    def with_prompt(piece: Piece) -> Piece:
        is_first = piece.index not in begun
        begun.add(piece.index)
        return replace(piece, prompt_logprobs=of_prompt) if is_first and of_prompt else piece

    async with aclosing(pieces):
        async for piece in pieces:
            if not is_scored and piece.index != 0:
                waiting.append(piece)
                continue
            if not is_scored:
                of_prompt += piece.prompt_logprobs
                if piece.prompt_logprobs and not (piece.token_ids or piece.finish):
                    continue
                is_scored = True
            yield with_prompt(piece)
            for each in waiting:
                yield with_prompt(each)
            waiting = []


class Rounds:
    """Starts generations for one caller."""

    def __init__(self, coordinators: Coordinators, request: HttpRequest, key: str | None) -> None:
        """`key`: the caller's, given on to the coordinator."""
        self._coordinators = coordinators
        self._request = request
        self._key = key

    async def all(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Each round with its prompt's number. Closing it ends all generations. Raises what ended one early."""
        if len(self._request.prompts) == 1:
            async with aclosing(self.one(self._request.prompts[0])) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        waiting: Waiting = asyncio.Queue(MAX_QUEUED_ROUNDS)
        tasks = [asyncio.create_task(self._run(*each, waiting)) for each in enumerate(self._request.prompts)]
        try:
            num_left = len(tasks)
            while num_left:
                number, found = await waiting.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    num_left -= 1
                else:
                    yield number, found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def one(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """One prompt's: of all its samples."""
        asked, sampling = self._request, self._request.sampling
        if sampling.seed is None:
            # Ours, and not each coordinator's: with it another one can go on.
            sampling = replace(sampling, seed=fresh_seed())

        def start(client: AsyncClient, replay_buffer: ReplayBuffer) -> AsyncGenerator[Piece, None]:
            prediction = replay_buffer.prediction if asked.prediction is None else asked.prediction
            if traceparent := current.get().traceparent:
                client = client.with_traceparent(traceparent)
            pieces = client.stream(
                prompt, sampling, asked.speculation, asked.is_raw, prediction=prediction,
                trace=asked.is_traced, request_id=asked.request_id, cache_salt=asked.cache_salt,
                template_options=asked.template_options,
                parse_special_tokens=asked.parses_special_tokens,
            )  # fmt: skip
            return as_rounds(pieces, sampling.prompt_logprobs is not None)

        rounds = self._coordinators.stream(routing_prefix(prompt), self._key, start)
        with GenerationTimer(self._coordinators.metrics) as timer:
            async with aclosing(rounds) as pieces:
                async for piece in pieces:
                    timer.count(piece)
                    yield piece

    async def _run(self, number: int, prompt: Prompt, waiting: Waiting) -> None:
        try:
            async with aclosing(self.one(prompt)) as pieces:
                async for piece in pieces:
                    await waiting.put((number, piece))
        except Exception as error:
            await waiting.put((number, error))
        else:
            await waiting.put((number, None))


log = logging.getLogger(__name__)
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # A proxy that collects what it passes on would hold the text back.
    (b"x-accel-buffering", b"no"),
]
DONE = b"data: [DONE]\n\n"


def event(body: Any) -> bytes:
    return b"data: " + orjson.dumps(body) + b"\n\n"


async def send_events(
    chunks: AsyncGenerator[list[dict[str, Any]], None], send: Send, names: FieldNames = NO_RENAMES
) -> None:
    """Sends the stream: what comes together goes out together. Raises what comes before the first chunk; an error
    behind it is an event, the last but [DONE]. `names`: of fields, in errors.

    `send` waits where the client does not read, so this holds no more than one round.
    """
    async with aclosing(chunks):
        first = await anext(chunks)
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await _send(send, first)
        try:
            async for each in chunks:
                await _send(send, each)
        except Exception as error:
            if not isinstance(error, PacelineError):
                log.exception("a stream failed", exc_info=error)
            record_failure(error)
            await _send(send, [error_body(error, names)])
    await send({"type": "http.response.body", "body": DONE, "more_body": False})


async def _send(send: Send, bodies: list[Any]) -> None:
    await send({"type": "http.response.body", "body": b"".join(map(event, bodies)), "more_body": True})


async def until_client_goes(receive: Receive, work: Awaitable[None]) -> None:
    """Runs `work`, and cancels it when the client closes its connection. The request's body must have been read."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
