"""The rounds of a request's generations, from the coordinators that make them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from gateway.coordinators import Coordinators
from gateway.delivered import Delivered
from gateway.requests import HttpRequest
from gateway.spans import current
from gateway.watch import Watch
from paceline.client import AsyncClient, Prompt
from paceline.noise import fresh_seed
from paceline.results import Piece, TokenLogprobs

# Of a prompt, what decides which coordinator gets it.
BEGINNING_CHARACTERS = 512
# Of several prompts, rounds that wait for a slow reader; a coordinator holds what is behind them.
MOST_WAITING = 64
Waiting = asyncio.Queue[tuple[int, Piece | BaseException | None]]


def beginning_of(prompt: Prompt) -> str:
    """By which prompts that begin alike are known."""
    # A token id takes up to eight characters of a list's text.
    return str(prompt if isinstance(prompt, str) else prompt[:64])[:BEGINNING_CHARACTERS]


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

    async def of_all(self) -> AsyncGenerator[tuple[int, Piece], None]:
        """Each round with its prompt's number. Closing it ends all generations. Raises what ended one early."""
        if len(self._request.prompts) == 1:
            async with aclosing(self.of_one(self._request.prompts[0])) as pieces:
                async for piece in pieces:
                    yield 0, piece
            return
        waiting: Waiting = asyncio.Queue(MOST_WAITING)
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

    async def of_one(self, prompt: Prompt) -> AsyncGenerator[Piece, None]:
        """One prompt's: of all its samples."""
        asked, sampling = self._request, self._request.sampling
        if sampling.seed is None:
            # Ours, and not each coordinator's: with it another one can go on.
            sampling = replace(sampling, seed=fresh_seed())

        def start(client: AsyncClient, delivered: Delivered) -> AsyncGenerator[Piece, None]:
            prediction = delivered.prediction if asked.prediction is None else asked.prediction
            if traceparent := current.get().traceparent:
                client = client.with_traceparent(traceparent)
            pieces = client.stream(
                prompt, sampling, asked.speculation, asked.is_raw, prediction=prediction,
                trace=asked.is_traced, request_id=asked.request_id, cache_salt=asked.cache_salt,
                template_options=asked.template_options,
                parse_special_tokens=asked.parses_special_tokens,
            )  # fmt: skip
            return as_rounds(pieces, sampling.prompt_logprobs is not None)

        rounds = self._coordinators.stream(beginning_of(prompt), self._key, start)
        with Watch(self._coordinators.metrics) as watch:
            async with aclosing(rounds) as pieces:
                async for piece in pieces:
                    watch.count(piece)
                    yield piece

    async def _run(self, number: int, prompt: Prompt, waiting: Waiting) -> None:
        try:
            async with aclosing(self.of_one(prompt)) as pieces:
                async for piece in pieces:
                    await waiting.put((number, piece))
        except Exception as error:
            await waiting.put((number, error))
        else:
            await waiting.put((number, None))
