"""Runs generations at the coordinators and streams their rounds."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime

from starlette.types import Receive

from gateway.errors import renamed
from gateway.replay import ReplayBuffer
from gateway.requests import HttpRequest
from gateway.router import Coordinators
from gateway.telemetry import GenerationTimer, current
from gateway.token_texts import TokenTexts
from paceline.checks import with_known
from paceline.client import AsyncClient, Prompt
from paceline.errors import InvalidArgument
from paceline.noise import fresh_seed
from paceline.results import Chunk, Detokenized, TokenLogprobs
from paceline.speculation_params import Rule, SpeculationParams
from paceline.suspicion import Fate

log = logging.getLogger(__name__)
# Prompts that share this prefix go to the same coordinator, whose servers may have it cached.
PREFIX_CHARACTERS = 512
# Rounds queued for a slow client before coordinators must buffer them.
MAX_QUEUED_ROUNDS = 64
# Prompt index and a round; or an error; or None at the end.
RoundQueue = asyncio.Queue[tuple[int, Chunk | Exception | None]]


class Generation:
    """One request for one caller."""

    def __init__(
        self,
        request: HttpRequest,
        model: str,
        coordinators: Coordinators,
        texts: TokenTexts,
        key: str | None,
        check: Callable[[Chunk], None],
        defaults: SpeculationParams,
    ) -> None:
        """`check` gets each round before it is yielded, and may raise. `defaults`: the deployment's."""
        self.request = request
        self.model = model
        self.texts = texts
        self._coordinators = coordinators
        # The caller's.
        self._key = key
        self._check = check
        self._defaults = defaults
        self._fate = Fate()

    async def load_texts(self, ids: Iterable[int]) -> None:
        await self.texts.load(set(ids), self._key)

    async def detokenize(self, ids: list[int]) -> Detokenized:
        return await self._coordinators.detokenize(ids, self._key)

    async def rounds(self) -> AsyncGenerator[tuple[int, Chunk], None]:
        """Yields rounds with their prompt's index. Closing it cancels all."""
        prompts = self.request.prompts
        if len(prompts) == 1:
            async with aclosing(self._rounds_of(prompts[0])) as chunks:
                async for chunk in chunks:
                    yield 0, chunk
            return
        queue: RoundQueue = asyncio.Queue(MAX_QUEUED_ROUNDS)
        tasks = [asyncio.create_task(self._enqueue(*each, queue)) for each in enumerate(prompts)]
        try:
            num_left = len(tasks)
            while num_left:
                index, found = await queue.get()
                if isinstance(found, Exception):
                    raise found
                if found is None:
                    num_left -= 1
                else:
                    yield index, found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _enqueue(self, index: int, prompt: Prompt, queue: RoundQueue) -> None:
        try:
            async with aclosing(self._rounds_of(prompt)) as chunks:
                async for chunk in chunks:
                    await queue.put((index, chunk))
        except Exception as error:
            await queue.put((index, error))
        else:
            await queue.put((index, None))

    async def _rounds_of(self, prompt: Prompt) -> AsyncGenerator[Chunk, None]:
        request, sampling = self.request, self.request.sampling
        if sampling.seed is None:
            # Chosen here so that another coordinator can resume the generation.
            sampling = with_known(sampling, seed=fresh_seed())
        # As is the time that the chat template is told.
        template_time = datetime.now().isoformat(timespec="seconds")

        # Under `rejection` a request with a prediction draws with other noise.
        is_matched = (request.speculation or self._defaults).resolved_rule(sampling) is Rule.MATCH

        def start(
            client: AsyncClient, replay_buffer: ReplayBuffer, on_accepted: Callable[[], None] | None
        ) -> AsyncGenerator[Chunk, None]:
            known = replay_buffer.prediction if is_matched else None
            prediction = known if request.prediction is None else request.prediction
            if traceparent := current.get().traceparent:
                client = client.with_traceparent(traceparent)
            chunks = client.stream(
                prompt, sampling, request.speculation, request.is_raw, prediction=prediction,
                trace=request.is_traced, request_id=request.request_id, cache_salt=request.cache_salt,
                template_options=request.template_options,
                parse_special_tokens=request.parses_special_tokens, format=request.format,
                tools=request.tools.tools, tool_choice=request.tools.choice,
                parallel_tool_calls=request.tools.parallel, template_time=template_time, on_accepted=on_accepted,
            )  # fmt: skip
            return as_rounds(chunks, sampling.prompt_logprobs is not None)

        rounds = self._coordinators.stream(request.session or routing_prefix(prompt), self._key, start, self._fate)
        with GenerationTimer(self._coordinators.metrics) as timer:
            try:
                async with aclosing(rounds) as chunks:
                    async for chunk in chunks:
                        timer.on_chunk(chunk)
                        self._check(chunk)
                        yield chunk
            except InvalidArgument as error:
                raise renamed(error, request.names) from None


def routing_prefix(prompt: Prompt) -> str:
    # A token id takes up to eight characters.
    return str(prompt[:64] if isinstance(prompt, list) else prompt)[:PREFIX_CHARACTERS]


async def as_rounds(chunks: AsyncGenerator[Chunk, None], scores_prompt: bool) -> AsyncGenerator[Chunk, None]:
    """Yields rounds; with `scores_prompt`, each choice's first has the prompt's log-probabilities.

    Coordinators send these only with choice 0, in several chunks for a long prompt. Other choices wait for them.
    """
    prompt_logprobs: list[TokenLogprobs] = []
    is_scored, waiting = not scores_prompt, list[Chunk]()
    begun: set[int] = set()

    def with_prompt(chunk: Chunk) -> Chunk:
        is_first = chunk.index not in begun
        begun.add(chunk.index)
        return replace(chunk, prompt_logprobs=prompt_logprobs) if is_first and prompt_logprobs else chunk

    async with aclosing(chunks):
        async for chunk in chunks:
            if not is_scored and chunk.index != 0:
                waiting.append(chunk)
                continue
            if not is_scored:
                prompt_logprobs += chunk.prompt_logprobs
                if chunk.prompt_logprobs and not (chunk.token_ids or chunk.finish):
                    continue
                is_scored = True
            yield with_prompt(chunk)
            for each in waiting:
                yield with_prompt(each)
            waiting = []


async def until_disconnect(receive: Receive, work: Awaitable[None]) -> None:
    """Cancels `work` if the client disconnects. The request's body must have been read."""
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
