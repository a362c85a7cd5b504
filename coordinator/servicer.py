"""The public Generation service: requests in, rounds out."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio

import paceline
from coordinator.acceptance import Origin
from coordinator.admission import Admission
from coordinator.context import Context, Emission, FinishReason, Request
from coordinator.decoding import generate
from coordinator.drafting import Drafter, NoDrafter
from coordinator.drafting.remote_model import RemoteDrafter
from coordinator.links import Link
from coordinator.stats import GenerationStats
from coordinator.text import Tokenizer
from coordinator.verifying import RemoteTarget
from paceline.errors import InvalidArgument, Unavailable
from paceline.noise import fresh_seed
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


class GenerationServicer:
    """One task a generation; its rounds are buffered, so a slow reader does not hold the caches."""

    def __init__(
        self, target: Link, draft: Link | None, tokenizer: Tokenizer, admission: Admission,
        defaults: SpeculationParams, patience_s: float,
    ) -> None:  # fmt: skip
        self._target = target
        self._draft = draft
        self._tokenizer = tokenizer
        self._admission = admission
        self._defaults = defaults
        self._patience_s = patience_s

    async def Generate(self, message: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        stats = GenerationStats()
        request = self._parse(message)
        emissions: asyncio.Queue[Emission | None] = asyncio.Queue()
        generation = Context(request, self._tokenizer.stream(request.sampling.stop))
        task = asyncio.create_task(self._run(generation, emissions, stats))
        try:
            while (emission := await emissions.get()) is not None:
                # The next round's command goes out before this round's text.
                await asyncio.sleep(0)
                response = _response(request, emission)
                if emission.is_last:
                    response.finish.CopyFrom(_finish(generation, stats))
                yield response
            # Raises what ended the generation early.
            await task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task

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

    async def _run(
        self, generation: Context, emissions: asyncio.Queue[Emission | None], stats: GenerationStats
    ) -> None:
        request = generation.request
        try:
            async with self._admission.place():
                target = RemoteTarget(self._target, request, self._patience_s)
                rounds = generate(generation, self._drafter(request), target, stats)
                async with contextlib.aclosing(rounds):
                    async for emission in rounds:
                        emissions.put_nowait(emission)
        finally:
            emissions.put_nowait(None)

    def _drafter(self, request: Request) -> Drafter:
        if self._draft is None or not request.speculation.enabled or request.speculation.num_draft_tokens == 0:
            return NoDrafter()
        return RemoteDrafter(self._draft, request)

    def _parse(self, message: Any) -> Request:
        """Everything resolved and checked. Raises InvalidArgument naming the field and its range."""
        card = self._card
        sampling = sampling_from_message(message.sampling)
        sampling.check_token_ids(card.vocab_size)
        if sampling.seed is None:
            sampling = replace(sampling, seed=fresh_seed())
        speculation = speculation_from_message(message.speculation, self._defaults)
        speculation.resolved_drawing(sampling)
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


def _response(request: Request, emission: Emission) -> Any:
    return generation_pb2.GenerateResponse(
        request_id=request.request_id,
        token_ids=emission.tokens,
        origins=[ORIGINS[origin] for origin in emission.origins],
        text="".join(emission.pieces),
        text_lengths=[len(piece) for piece in emission.pieces],
    )


def _finish(generation: Context, stats: GenerationStats) -> Any:
    assert generation.finish_reason is not None
    return generation_pb2.Finish(
        reason=FINISH_REASONS[generation.finish_reason],
        prompt_tokens=len(generation.request.prompt),
        completion_tokens=generation.num_generated,
        seed=generation.request.seed,
        speculation=generation_pb2.SpeculationFigures(
            rounds=stats.rounds,
            proposed=stats.proposed,
            accepted=stats.accepted,
            proposed_per_position=stats.proposed_per_position,
            accepted_per_position=stats.accepted_per_position,
            mean_acceptance_length=stats.mean_acceptance_length,
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
