"""The public Generation service: requests in, rounds out."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc.aio

import paceline
from coordinator.acceptance import accept
from coordinator.admission import Admission
from coordinator.choosing.active_generations import ActiveGenerations
from coordinator.context import Emission, Request
from coordinator.decoding import generate
from coordinator.drafting.factory import Proposers
from coordinator.drafting.recent_answers import RecentAnswers
from coordinator.remote.link import Link
from coordinator.remote.target import RemoteTarget
from coordinator.requests import RequestReader, requests_of_choices
from coordinator.responses import Choice, make_response
from coordinator.synthetic import SyntheticAcceptance
from coordinator.text import Tokenizer
from coordinator.tracing import trace_round
from paceline.errors import Unavailable
from paceline.rpc.messages import speculation_to_message
from paceline.sampling import SpeculationParams
from paceline.trace import RoundTrace
from paceline.v1 import generation_pb2, model_pb2

# What a choice's task hands to the call; None when the task is over, however it ended.
Emissions = asyncio.Queue[tuple[Choice, Emission | None]]


class GenerationServicer:
    """One task a generation; its rounds are buffered, so a slow reader does not hold the caches."""

    def __init__(
        self, target: Link, draft: Link | None, tokenizer: Tokenizer, admission: Admission,
        proposers: Proposers, defaults: SpeculationParams, patience_s: float,
        active: ActiveGenerations, synthetic: SyntheticAcceptance | None = None, recent: RecentAnswers | None = None,
    ) -> None:  # fmt: skip
        """`defaults`: of what a request does not say; `patience_s`: how long a generation waits for a target that went
        away; `synthetic`: for benchmarks, in place of the rule that decides; `recent`: remembers
        what is answered."""
        self._target = target
        self._draft = draft
        self._tokenizer = tokenizer
        self._admission = admission
        self._proposers = proposers
        self._defaults = defaults
        self._patience_s = patience_s
        self._synthetic = synthetic
        self._active = active
        self._recent = recent
        self._requests = RequestReader(tokenizer, proposers, defaults)

    async def Generate(self, message: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        request = await self._requests.read(message, self._card)
        emissions: Emissions = asyncio.Queue()
        choices = [Choice(index, each, self._tokenizer) for index, each in enumerate(requests_of_choices(request))]
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
            # A field that is None stays unset.
            tokenizer=generation_pb2.TokenizerInfo(
                **self._tokenizer.special_tokens, chat_template=self._tokenizer.chat_template
            ),
        )

    async def Tokenize(self, message: Any, context: grpc.aio.ServicerContext) -> Any:
        ids = await self._requests.read_prompt(
            message,
            self._card,
            message.add_special_tokens if message.HasField("add_special_tokens") else True,
            message.add_generation_prompt if message.HasField("add_generation_prompt") else True,
        )
        return generation_pb2.TokenIds(ids=ids)

    async def Detokenize(self, message: Any, context: grpc.aio.ServicerContext) -> Any:
        ids = self._requests.read_ids(message, self._card)
        skips = message.skip_special_tokens if message.HasField("skip_special_tokens") else True
        # A token has a few characters.
        text = await self._tokenizer.run(lambda: self._tokenizer.decode(ids, skips), 4 * len(ids))
        return generation_pb2.DetokenizeResponse(text=text, pieces=map(self._tokenizer.bytes_of, ids))

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
                        emit(replace(emission, trace=self._trace(choice, emission)) if request.trace else emission)
            if self._recent is not None:
                await self._recent.add(request.cache_salt, choice.context.tokens[len(request.prompt) :])
        finally:
            self._active.leave(choice)
            emit(None)

    def _trace(self, choice: Choice, emission: Emission) -> RoundTrace:
        stats = choice.stats
        assert stats.last_round is not None, "a round has just been counted"
        return trace_round(stats.rounds, stats.last_round, emission, self._tokenizer.bytes_of)

    def _room(self, request: Request) -> int:
        """Tokens of the target's cache that a generation may come to hold, whole blocks of them."""
        block_size = self._card.block_size
        return -(-(len(request.prompt) + request.max_new_tokens) // block_size) * block_size
