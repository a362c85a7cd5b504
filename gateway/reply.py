"""A request's rounds become OpenAI's chunks, or one whole answer."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from gateway.coordinators import Coordinators
from gateway.forms import Form, ScoredToken
from gateway.requests import HttpRequest
from gateway.rounds import Rounds
from gateway.tokens import TokenTexts
from gateway.tracing import trace_body
from gateway.usage import Usage
from paceline.results import Detokenized, Piece


@dataclass(slots=True)
class Choice:
    """One of the answer's choices while it is written."""

    index: int
    text: str = ""
    # Characters of the text so far, and of the prompt that it begins with.
    num_characters: int = 0
    num_echoed: int = 0
    # Tokens whose text is held back: it may become part of a stop string.
    held: list[ScoredToken] = field(default_factory=list)
    reason: str = "stop"
    logprobs: list[Any] = field(default_factory=list)


class Reply:
    """One request's answer."""

    def __init__(
        self, form: Form, request: HttpRequest, model: str, coordinators: Coordinators, texts: TokenTexts, key: str | None
    ) -> None:  # fmt: skip
        """`model`: as clients call it; `key`: the caller's, given on to the coordinator."""
        self._form = form
        self._request = request
        self._rounds = Rounds(coordinators, request, key)
        self._coordinators = coordinators
        self._texts = texts
        self._key = key
        self._usage = Usage(request.prompts, request.prediction is not None)
        self._choices: dict[int, Choice] = {}
        identity = form.prefix + request.request_id
        self._head = {"id": identity, "object": form.chunk_object, "created": int(time.time()), "model": model}

    async def chunks(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Those of each round. Raises what a coordinator raises; before the first nothing is promised to anybody."""
        async with aclosing(self._rounds.of_all()) as rounds:
            async for prompt, piece in rounds:
                choice, is_first = self._choice_of(prompt, piece)
                opening = self._form.opening(choice.index) if is_first else None
                before = [] if opening is None else [self._chunk(opening)]
                yield [*before, await self._delta(choice, prompt, piece, is_first)]
        if self._request.includes_usage:
            yield [{**self._head, "choices": [], "usage": self._usage.body(), **self._usage.figures()}]

    async def whole(self) -> dict[str, Any]:
        """The answer in one piece."""
        async with aclosing(self._rounds.of_all()) as rounds:
            async for prompt, piece in rounds:
                choice, is_first = self._choice_of(prompt, piece)
                text, logprobs = await self._take(choice, prompt, piece, is_first)
                choice.text += text
                if logprobs is not None:
                    choice.logprobs.append(logprobs)
        wholes = []
        for _, choice in sorted(self._choices.items()):
            logprobs = self._form.join(choice.logprobs) if choice.logprobs else None
            wholes.append(self._form.whole(choice.index, choice.text, logprobs, choice.reason))
        head = {**self._head, "object": self._form.whole_object}
        return {**head, "choices": wholes, "usage": self._usage.body(), **self._usage.figures()}

    def _choice_of(self, prompt: int, piece: Piece) -> tuple[Choice, bool]:
        """The piece's choice, and whether this is its first piece."""
        index = prompt * self._request.sampling.n + piece.index
        is_first = index not in self._choices
        if is_first:
            self._usage.begin(prompt, piece)
        return self._choices.setdefault(index, Choice(index)), is_first

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._request.has_usage_in_every_chunk:
            chunk["usage"] = self._usage.body()
        elif self._request.includes_usage:
            chunk["usage"] = None
        return chunk

    async def _delta(self, choice: Choice, prompt: int, piece: Piece, is_first: bool) -> dict[str, Any]:
        text, logprobs = await self._take(choice, prompt, piece, is_first)
        is_last = piece.finish is not None
        delta = self._form.delta(choice.index, text, logprobs, choice.reason if is_last else None)
        if piece.trace is not None:
            await self._texts.learn(set(piece.token_ids), self._key)
            delta["paceline"] = trace_body(piece, self._texts)
        chunk = self._chunk(delta)
        if is_last and not self._request.includes_usage:
            chunk |= self._usage.figures()
        return chunk

    async def _take(self, choice: Choice, prompt: int, piece: Piece, is_first: bool) -> tuple[str, Any]:
        """What a round adds to its choice: text, and log-probabilities where they are asked for."""
        text, tokens = piece.text, choice.held
        scores = self._request.sampling.logprobs is not None
        self._usage.count(len(piece.token_ids))
        if piece.finish is not None:
            choice.reason = piece.finish.reason
            self._usage.finish(choice.index, piece.finish)
        if is_first and self._request.echo:
            ids = [token for token in self._request.prompts[prompt] if isinstance(token, int)]
            echoed = await self._detokenize(ids)
            text, choice.num_echoed = echoed.text + text, len(echoed.text)
            if scores:
                # Nothing is said of a prompt's first token.
                tokens += map(ScoredToken, ids, [None, *piece.prompt_logprobs], echoed.text_offsets)
        choice.num_characters += len(text)
        if not scores:
            return text, None
        for token, each in zip(piece.token_ids, piece.logprobs, strict=True):
            tokens.append(ScoredToken(token, each, choice.num_echoed + each.text_offset))
        ready = self._ready(choice, piece)
        await self._texts.learn({each.token for each in ready} | _likeliest(ready), self._key)
        return text, self._form.logprobs(ready, self._texts)

    def _ready(self, choice: Choice, piece: Piece) -> list[ScoredToken]:
        """Takes the choice's tokens that may go out: each with its text, so that none lies beyond the end."""
        end, tokens = choice.num_characters, choice.held
        if piece.finish is not None or not self._request.sampling.stop:
            choice.held = []
            return [each._replace(text_offset=min(each.text_offset, end)) for each in tokens]
        num_ready = sum(each.text_offset < end for each in tokens)
        choice.held = tokens[num_ready:]
        return tokens[:num_ready]

    async def _detokenize(self, ids: list[int]) -> Detokenized:
        return await self._coordinators.ask(
            "", lambda each: each.client_for(self._key).detokenize(ids, skip_special_tokens=False)
        )


def _likeliest(tokens: list[ScoredToken]) -> set[int]:
    return {other for each in tokens if each.logprobs is not None for other in each.logprobs.top_token_ids}
