"""Builds OpenAI's chunks, or a whole response, from rounds."""

import time
from abc import abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from gateway.dialects.dialect import Dialect, Reply
from gateway.items import Items, Step
from gateway.resumed_generation import Generation
from gateway.token_texts import TokenTexts
from paceline.results import Chunk, TokenLogprobs

# OpenAI's log-probability of excluded tokens: JSON has no infinity.
LOWEST = -9999.0
ORIGINS = {"A": "accepted", "R": "recovered", "B": "bonus", "T": "target", "F": "forced"}


class ScoredToken(NamedTuple):
    """A prompt's first token has no log-probabilities."""

    token: int
    logprobs: TokenLogprobs | None
    # In characters of the choice's text.
    text_offset: int


class Form(Dialect):
    """An API of choices, and how it writes one. `logprobs` is None unless requested."""

    id_prefix: ClassVar[str]
    chunk_object: ClassVar[str]
    whole_object: ClassVar[str]

    def reply(self, generation: Generation) -> "ChoicesReply":
        return ChoicesReply(self, generation)

    @abstractmethod
    def opening(self, index: int) -> dict[str, Any] | None:
        """Returns a choice's first chunk, if the endpoint has one."""

    @abstractmethod
    def deltas(
        self, index: int, text: str, steps: list[Step], logprobs: dict[str, Any] | None, reason: str | None
    ) -> list[dict[str, Any]]:
        """Returns a round's chunks: one at least. `text`: with an echo, unlike that of `steps`."""

    @abstractmethod
    def whole(self, choice: "ReplyChoice", logprobs: dict[str, Any] | None) -> dict[str, Any]: ...

    @abstractmethod
    def logprobs(self, tokens: Sequence[ScoredToken], texts: TokenTexts) -> dict[str, Any]:
        """Needs loaded `texts`."""

    @abstractmethod
    def join_logprobs(self, parts: list[dict[str, Any]]) -> dict[str, Any]: ...


@dataclass(slots=True)
class ReplyChoice:
    index: int
    text: str = ""
    # Characters of the text, and of the echoed prompt at its beginning.
    num_characters: int = 0
    num_echoed: int = 0
    # Tokens whose text is held back because it may become part of a stop string.
    held: list[ScoredToken] = field(default_factory=list)
    reason: str = "stop"
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    items: Items = field(default_factory=Items)


class ChoicesReply(Reply):
    stream_end = b"data: [DONE]\n\n"

    def __init__(self, form: Form, generation: Generation) -> None:
        super().__init__(generation, form)
        self._form = form
        self._choices: dict[int, ReplyChoice] = {}
        self._head = {
            "id": form.id_prefix + self._request.request_id, "object": form.chunk_object, "created": int(time.time()),
            "model": generation.model,
        }  # fmt: skip

    async def chunks(self) -> AsyncGenerator[list[dict[str, Any]], None]:
        async with aclosing(self._generation.rounds()) as rounds:
            async for prompt, chunk in rounds:
                choice, is_first = self._choice_of(prompt, chunk)
                opening = self._form.opening(choice.index) if is_first else None
                before = [] if opening is None else [self._chunk(opening)]
                yield [*before, *await self._deltas(choice, prompt, chunk, is_first)]
        if self._request.includes_usage:
            yield [{**self._head, "choices": [], "usage": self._usage.body(), **self._usage.figures()}]

    async def whole(self) -> dict[str, Any]:
        async with aclosing(self._generation.rounds()) as rounds:
            async for prompt, chunk in rounds:
                choice, is_first = self._choice_of(prompt, chunk)
                text, logprobs = await self._append(choice, prompt, chunk, is_first)
                choice.text += text
                choice.items.read(chunk)
                if logprobs is not None:
                    choice.logprobs.append(logprobs)
        wholes = []
        for _, choice in sorted(self._choices.items()):
            logprobs = self._form.join_logprobs(choice.logprobs) if choice.logprobs else None
            wholes.append(self._form.whole(choice, logprobs))
        head = {**self._head, "object": self._form.whole_object}
        return {**head, "choices": wholes, "usage": self._usage.body(), **self._usage.figures()}

    def _choice_of(self, prompt: int, chunk: Chunk) -> tuple[ReplyChoice, bool]:
        """Returns the choice, and whether this is its first chunk."""
        index = prompt * self._request.sampling.n + chunk.index
        is_first = index not in self._choices
        if is_first:
            self._usage.begin(prompt, chunk)
        return self._choices.setdefault(index, ReplyChoice(index)), is_first

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        chunk: dict[str, Any] = {**self._head, "choices": [choice]}
        if self._request.has_usage_in_every_chunk:
            chunk["usage"] = self._usage.body()
        return chunk

    async def _deltas(self, choice: ReplyChoice, prompt: int, chunk: Chunk, is_first: bool) -> list[dict[str, Any]]:
        text, logprobs = await self._append(choice, prompt, chunk, is_first)
        is_last = chunk.finish is not None
        reason = choice.reason if is_last else None
        deltas = self._form.deltas(choice.index, text, choice.items.read(chunk), logprobs, reason)
        if chunk.trace is not None:
            await self._generation.load_texts(chunk.token_ids)
            deltas[0]["paceline"] = trace_body(chunk, self._generation.texts)
        chunks = [self._chunk(each) for each in deltas]
        if is_last and not self._request.includes_usage:
            chunks[-1] |= self._usage.figures()
        return chunks

    async def _append(
        self, choice: ReplyChoice, prompt: int, chunk: Chunk, is_first: bool
    ) -> tuple[str, dict[str, Any] | None]:
        """Returns the text and the log-probabilities that are due."""
        text, tokens = chunk.text, choice.held
        has_logprobs = self._request.sampling.logprobs is not None
        self._usage.count(len(chunk.token_ids))
        if chunk.finish is not None:
            choice.reason = chunk.finish.reason
            self._usage.finish(choice.index, chunk.finish)
        if is_first and self._request.echo:
            asked = self._request.prompts[prompt]
            ids = [token for token in asked if isinstance(token, int)] if isinstance(asked, list) else []
            echoed = await self._generation.detokenize(ids)
            text, choice.num_echoed = echoed.text + text, len(echoed.text)
            if has_logprobs:
                # A prompt's first token has no log-probability.
                tokens += map(ScoredToken, ids, [None, *chunk.prompt_logprobs], echoed.text_offsets)
        choice.num_characters += len(text)
        if not has_logprobs:
            return text, None
        for token, each in zip(chunk.token_ids, chunk.logprobs, strict=True):
            tokens.append(ScoredToken(token, each, choice.num_echoed + each.text_offset))
        ready = self._pop_ready(choice, chunk)
        likeliest = (token for each in ready if each.logprobs is not None for token in each.logprobs.top_token_ids)
        await self._generation.load_texts({*(each.token for each in ready), *likeliest})
        return text, self._form.logprobs(ready, self._generation.texts)

    def _pop_ready(self, choice: ReplyChoice, chunk: Chunk) -> list[ScoredToken]:
        """Pops tokens whose text is out. Offsets are at most the text's length."""
        end, tokens = choice.num_characters, choice.held
        if chunk.finish is not None or not self._request.sampling.stop:
            choice.held = []
            return [each._replace(text_offset=min(each.text_offset, end)) for each in tokens]
        num_ready = sum(each.text_offset < end for each in tokens)
        choice.held = tokens[num_ready:]
        return tokens[:num_ready]


def trace_body(chunk: Chunk, texts: TokenTexts) -> dict[str, Any] | None:
    """Needs loaded `texts`."""
    trace = chunk.trace
    if trace is None:
        return None
    return {
        "round": trace.round,
        "drafter": trace.drafter,
        "reason": trace.reason,
        "draft_tokens": trace.draft_tokens,
        "proposed": [
            {
                "token_id": each.token_id, "text": each.text, "accepted": each.accepted,
                "q": each.q, "p": each.p, "r": each.r, "target_id": each.target_id, "target_text": each.target_text,
            }
            for each in trace.proposed
        ],
        "emitted": [
            {"token_id": token, "text": texts[token].text, "origin": ORIGINS[letter]}
            for token, letter in zip(chunk.token_ids, chunk.origins, strict=True)
        ],
        "num_accepted": trace.num_accepted,
        "entropies": trace.entropies,
        "smoothed_entropies": trace.smoothed_entropies,
        "allowed_draft_tokens": trace.allowed_draft_tokens,
        "draft_model": trace.draft_model,
        "ms": {
            "draft": trace.draft_us / 1e3, "target": trace.target_us / 1e3,
            "queued": trace.queued_us / 1e3, "rpc": trace.rpc_us / 1e3,
        },
    }  # fmt: skip


def finite(logprob: float) -> float:
    return max(logprob, LOWEST)
