"""The public Generation service: requests in, rounds out."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio

import paceline
from coordinator.acceptance import Origin, accept
from coordinator.admission import Admission
from coordinator.context import Context, Emission, FinishReason, Request
from coordinator.decoding import generate
from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.draft_length.choice import DraftLengthRules
from coordinator.drafting.choice import Drafters
from coordinator.logprobs import TokenLogprobs
from coordinator.remote.link import Link
from coordinator.remote.target import RemoteTarget
from coordinator.stats import GenerationStats
from coordinator.synthetic import SyntheticAcceptance
from coordinator.text import Tokenizer
from paceline.errors import InvalidArgument, Unavailable
from paceline.noise import derive_seed, fresh_seed
from paceline.rpc.messages import sampling_from_message, speculation_from_message, speculation_to_message
from paceline.sampling import SpeculationParams, require
from paceline.v1 import generation_pb2, model_pb2

ORIGINS = {
    Origin.ACCEPTED: generation_pb2.ORIGIN_ACCEPTED,
    Origin.RECOVERED: generation_pb2.ORIGIN_RECOVERED,
    Origin.BONUS: generation_pb2.ORIGIN_BONUS,
    Origin.TARGET: generation_pb2.ORIGIN_TARGET,
}
FINISH_REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


class Choice:
    """One of a request's n generations."""

    def __init__(self, index: int, request: Request, tokenizer: Tokenizer) -> None:
        self.index = index
        self.context = Context(request, tokenizer.stream(request.sampling.stop))
        self.stats = GenerationStats()


# What a sample's task hands to the call; None when the task is over, however it ended.
Emissions = asyncio.Queue[tuple[Choice, Emission | None]]


class GenerationServicer:
    """One task a generation; its rounds are buffered, so a slow reader does not hold the caches."""

    def __init__(
        self, target: Link, draft: Link | None, tokenizer: Tokenizer, admission: Admission,
        drafters: Drafters, defaults: SpeculationParams, patience_s: float,
        synthetic: SyntheticAcceptance | None = None,
    ) -> None:  # fmt: skip
        """`synthetic`: for benchmarks, in place of the rule that decides."""
        self._target = target
        self._draft = draft
        self._tokenizer = tokenizer
        self._admission = admission
        self._drafters = drafters
        self._defaults = defaults
        self._patience_s = patience_s
        self._synthetic = synthetic
        self._active = ActiveGenerations()
        self._lengths = DraftLengthRules(self._active)

    async def Generate(self, message: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        request = self._parse(message)
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
                response = _response(choice, emission)
                if emission.is_last and self._synthetic is not None:
                    response.finish.speculation.synthetic_acceptance = self._synthetic.chance
                yield response
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
                length = self._lengths.make(request.speculation)
                rounds = generate(
                    choice.context,
                    self._drafters.make(request, length),
                    length,
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

    def _parse(self, message: Any) -> Request:
        """Everything resolved and checked. Raises InvalidArgument naming the field and its range."""
        card = self._card
        sampling = sampling_from_message(message.sampling)
        eos_token_ids = () if sampling.ignore_eos else tuple(card.eos_token_ids)
        sampling.check_token_ids(card.vocab_size, eos_token_ids)
        if sampling.seed is None:
            sampling = replace(sampling, seed=fresh_seed())
        speculation = speculation_from_message(message.speculation, self._defaults)
        speculation.check(sampling)
        self._drafters.check(speculation.drafter)
        prompt = self._prompt(message, card.vocab_size)
        longest = card.max_model_len - 1
        require(len(prompt) >= 1, "prompt", "0 tokens", "at least one token")
        require(len(prompt) <= longest, "prompt", f"{len(prompt)} tokens", f"at most {longest} tokens for this model")
        return Request(
            request_id=message.request_id or secrets.token_hex(8),
            prompt=prompt,
            sampling=sampling,
            speculation=speculation,
            eos_token_ids=tuple(card.eos_token_ids),
            max_length=card.max_model_len,
        )

    def _prompt(self, message: Any, vocab_size: int) -> list[int]:
        match message.WhichOneof("prompt"):
            case "text":
                return self._tokenizer.encode(message.text) if message.text else []
            case "chat":
                messages = [{"role": m.role, "content": m.content} for m in message.chat.messages]
                require(len(messages) > 0, "chat.messages", "empty", "at least one message")
                for each in messages:
                    require(
                        each["role"] in ("system", "user", "assistant"),
                        "chat.messages.role", each["role"], "system, user or assistant",
                    )  # fmt: skip
                return self._tokenizer.encode_chat(messages)
            case "token_ids":
                ids = list(message.token_ids.ids)
                worst = max(ids, default=0)
                require(worst < vocab_size, "token_ids", worst, f"in [0, {vocab_size})")
                return ids
            case _:
                raise InvalidArgument.field("prompt", None, "text, chat or token_ids")


def _requests_of_choices(request: Request) -> list[Request]:
    """n requests for one sample each, with seeds of their own; the prompt is scored for the first alone."""
    rest = replace(request.sampling, prompt_logprobs=None)
    return [request] + [
        replace(request, sampling=replace(rest, seed=derive_seed(request.seed, index)))
        for index in range(1, request.sampling.n)
    ]


def _response(choice: Choice, emission: Emission) -> Any:
    response = generation_pb2.GenerateResponse(
        request_id=choice.context.request.request_id,
        index=choice.index,
        token_ids=emission.tokens,
        origins=[ORIGINS[origin] for origin in emission.origins],
        text="".join(emission.pieces),
        text_lengths=[len(piece) for piece in emission.pieces],
        logprobs=[_logprobs(each) for each in emission.logprobs],
        prompt_logprobs=[_logprobs(each) for each in emission.prompt_logprobs],
    )
    if emission.is_last:
        response.finish.CopyFrom(_finish(choice.context, choice.stats))
    return response


def _logprobs(of_token: TokenLogprobs) -> Any:
    return generation_pb2.TokenLogprobs(
        logprob=of_token.logprob, top_token_ids=of_token.top_token_ids, top_logprobs=of_token.top_logprobs
    )


def _finish(generation: Context, stats: GenerationStats) -> Any:
    assert generation.finish_reason is not None
    lenience = generation.request.speculation.lenience
    return generation_pb2.Finish(
        reason=FINISH_REASONS[generation.finish_reason],
        prompt_tokens=len(generation.request.prompt),
        cached_prompt_tokens=stats.cached_prompt_tokens,
        completion_tokens=generation.num_generated,
        seed=generation.request.seed,
        speculation=generation_pb2.SpeculationFigures(
            rounds=stats.rounds,
            proposed=stats.proposed,
            accepted=stats.accepted,
            proposed_per_position=stats.proposed_per_position,
            accepted_per_position=stats.accepted_per_position,
            mean_acceptance_length=stats.mean_acceptance_length,
            lenience=lenience if lenience < 1 else None,
        ),
        timing=generation_pb2.Timing(
            first_token_us=stats.first_token_us,
            total_us=stats.total_us,
            draft_us=stats.draft_us,
            target_us=stats.target_us,
            queued_us=stats.queued_us,
            wire_us=stats.wire_us,
        ),
    )
