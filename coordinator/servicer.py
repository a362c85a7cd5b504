"""The public Generation service: requests in, rounds out."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio

import paceline
from coordinator.acceptance import accept
from coordinator.admission import Admission
from coordinator.context import Emission, Request
from coordinator.decoding import generate
from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.drafting.factory import Proposers
from coordinator.remote.link import Link
from coordinator.remote.target import RemoteTarget
from coordinator.responses import Choice, make_response
from coordinator.synthetic import SyntheticAcceptance
from coordinator.text import Tokenizer
from paceline.checks import require, require_at_most
from paceline.errors import InvalidArgument, Unavailable
from paceline.noise import derive_seed, fresh_seed
from paceline.rpc.messages import sampling_from_message, speculation_from_message, speculation_to_message
from paceline.sampling import SpeculationParams
from paceline.v1 import generation_pb2, model_pb2

# Far more than tokens have on average: a longer text has too many tokens for the model, whatever they are.
MAX_CHARACTERS_PER_TOKEN = 32
MAX_MESSAGES = 4096
MAX_ID_CHARACTERS = 256
# What a choice's task hands to the call; None when the task is over, however it ended.
Emissions = asyncio.Queue[tuple[Choice, Emission | None]]


class GenerationServicer:
    """One task a generation; its rounds are buffered, so a slow reader does not hold the caches."""

    def __init__(
        self, target: Link, draft: Link | None, tokenizer: Tokenizer, admission: Admission,
        proposers: Proposers, defaults: SpeculationParams, patience_s: float,
        active: ActiveGenerations, synthetic: SyntheticAcceptance | None = None,
    ) -> None:  # fmt: skip
        """`defaults`: of what a request does not say; `patience_s`: how long a generation waits for a target that went
        away; `synthetic`: for benchmarks, in place of the rule that decides."""
        self._target = target
        self._draft = draft
        self._tokenizer = tokenizer
        self._admission = admission
        self._proposers = proposers
        self._defaults = defaults
        self._patience_s = patience_s
        self._synthetic = synthetic
        self._active = active

    async def Generate(self, message: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        request = await self._parse(message)
        emissions: Emissions = asyncio.Queue()
        choices = [Choice(index, each, self._tokenizer) for index, each in enumerate(_requests_of_choices(request))]
        tasks = {choice.index: asyncio.create_task(self._run(choice, emissions)) for choice in choices}
        try:
            while tasks:
                choice, emission = await emissions.get()
                if emission is None:
                    # Raises what ended the generation early.
                    await tasks.pop(choice.index)
                    continue
                yield make_response(choice, emission, self._synthetic)
        finally:
            for task in tasks.values():
                task.cancel()
            await asyncio.gather(*tasks.values(), return_exceptions=True)

    async def Describe(self, message: Any, context: grpc.aio.ServicerContext) -> Any:
        return generation_pb2.DescribeResponse(
            target=self._card,
            draft=self._draft.card if self._draft is not None else None,
            defaults=speculation_to_message(self._defaults),
            running=self._admission.running,
            max_running=self._admission.max_running,
            version=paceline.__version__,
        )

    @property
    def _card(self) -> model_pb2.ModelCard:
        if self._target.card is None:
            raise Unavailable(f"the target server at {self._target.address} is not available")
        return self._target.card

    async def _run(self, choice: Choice, emissions: Emissions) -> None:
        request = choice.context.request
        loop = asyncio.get_running_loop()

        def emit(emission: Emission | None) -> None:
            # Later in this turn of the event loop: the next round's command goes out before this round's text.
            loop.call_soon(emissions.put_nowait, (choice, emission))

        try:
            async with self._admission.place(self._room(request)):
                rounds = generate(
                    choice.context,
                    self._proposers.make(request),
                    RemoteTarget(self._target, request, self._patience_s),
                    choice.stats,
                    self._synthetic or accept,
                )
                self._active.join(choice)
                async with contextlib.aclosing(rounds):
                    async for emission in rounds:
                        self._active.has_read(choice)
                        emit(emission)
        finally:
            self._active.leave(choice)
            emit(None)

    def _room(self, request: Request) -> int:
        """Tokens of the target's cache that a generation may come to hold, whole blocks of them."""
        block_size = self._card.block_size
        return -(-(len(request.prompt) + request.max_new_tokens) // block_size) * block_size

    async def _parse(self, message: Any) -> Request:
        """Everything resolved and checked. Raises InvalidArgument naming the field and its range."""
        card = self._card
        require_at_most(MAX_ID_CHARACTERS, len(message.request_id), "request_id", "characters")
        sampling = sampling_from_message(message.sampling)
        eos_token_ids = () if sampling.ignore_eos else tuple(card.eos_token_ids)
        sampling.check_token_ids(card.vocab_size, eos_token_ids)
        speculation = speculation_from_message(message.speculation, self._defaults)
        if sampling.seed is None:
            sampling = replace(sampling, seed=fresh_seed())
        speculation.check(sampling)
        self._proposers.check(speculation.drafter)
        prompt = await self._prompt(message, card)
        require(len(prompt) >= 1, "prompt", "0 tokens", "at least one token")
        _check_prompt_length(len(prompt), card)
        return Request(
            request_id=message.request_id or secrets.token_hex(8),
            prompt=prompt,
            sampling=sampling,
            speculation=speculation,
            eos_token_ids=tuple(card.eos_token_ids),
            max_length=card.max_model_len,
        )

    async def _prompt(self, message: Any, card: model_pb2.ModelCard) -> list[int]:
        """The prompt's tokens. What is too long for the model is refused before it is tokenized or copied."""
        most = card.max_model_len * MAX_CHARACTERS_PER_TOKEN
        match message.WhichOneof("prompt"):
            case "text":
                text = message.text
                require_at_most(most, len(text), "text", "characters")
                return await self._tokenizer.run(lambda: self._tokenizer.encode(text), len(text)) if text else []
            case "chat":
                messages = _parse_chat(message.chat)
                num_characters = sum(len(each["role"]) + len(each["content"]) for each in messages)
                require_at_most(most, num_characters, "chat.messages", "characters")
                return await self._tokenizer.run(lambda: self._tokenizer.encode_chat(messages), num_characters)
            case "token_ids":
                _check_prompt_length(len(message.token_ids.ids), card)
                ids = list(message.token_ids.ids)
                worst = max(ids, default=0)
                require(worst < card.vocab_size, "token_ids", worst, f"in [0, {card.vocab_size})")
                return ids
            case _:
                raise InvalidArgument.field("prompt", None, "text, chat or token_ids")


def _parse_chat(chat: Any) -> list[dict[str, str]]:
    require(len(chat.messages) > 0, "chat.messages", "empty", "at least one message")
    require_at_most(MAX_MESSAGES, len(chat.messages), "chat.messages", "messages")
    messages = [{"role": message.role, "content": message.content} for message in chat.messages]
    for each in messages:
        allowed = "system, user or assistant"
        require(each["role"] in ("system", "user", "assistant"), "chat.messages.role", each["role"], allowed)
    return messages


def _check_prompt_length(num_tokens: int, card: model_pb2.ModelCard) -> None:
    longest = card.max_model_len - 1
    require(num_tokens <= longest, "prompt", f"{num_tokens} tokens", f"at most {longest} tokens for this model")


def _requests_of_choices(request: Request) -> list[Request]:
    """n requests for one sample each, with seeds of their own; the prompt is scored for the first alone."""
    rest = replace(request.sampling, prompt_logprobs=None)
    return [request] + [
        replace(request, sampling=replace(rest, seed=derive_seed(request.seed, index)))
        for index in range(1, request.sampling.n)
    ]
