import asyncio
import secrets
from collections.abc import AsyncIterator
from dataclasses import replace

import grpc.aio

import paceline
from coordinator.generate_response import Choice
from coordinator.generations import Answer, Generations
from coordinator.remote.pool import Pool
from coordinator.request import Request, requests_of_choices
from coordinator.request_reader import RequestReader
from coordinator.telemetry import RequestSpan, log_refusal
from coordinator.unread import UnreadAnswer
from coordinator.warmup_prompt import WarmupPrompt
from paceline.errors import PacelineError, Unavailable
from paceline.observability.logs import request_id
from paceline.observability.spans import Spans
from paceline.rpc.metadata import traceparent_of
from paceline.rpc.model_messages import speculation_to_message
from paceline.rpc.status import ACCEPTED
from paceline.sampling_params import MAX_ID_CHARACTERS
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2, model_pb2


class GenerationServicer:
    """Buffers each generation's messages, so that a slow reader does not hold the caches (see `unread`)."""

    def __init__(
        self,
        draft: Pool | None,
        requests: RequestReader,
        generations: Generations,
        defaults: SpeculationParams,
        spans: Spans,
        warmup_prompt: WarmupPrompt | None = None,
    ) -> None:
        self._draft = draft
        self._requests = requests
        self._generations = generations
        self._defaults = defaults
        self._spans = spans
        self._warmup_prompt = warmup_prompt
        self._target = generations.target
        self._tokenizer = generations.tokenizer

    async def Generate(
        self, message: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[bytes]:
        message.request_id = message.request_id or secrets.token_hex(8)
        name, parent = message.request_id[:MAX_ID_CHARACTERS], traceparent_of(context.invocation_metadata())
        request_id.set(name)
        with self._generations.metrics.request(), RequestSpan(self._spans, parent, name) as span:
            request = replace(await self._read(message), traceparent=span.traceparent)
            if self._warmup_prompt is not None:
                self._warmup_prompt.record(request)
            span.describe(request, message.HasField("chat"), self._model_info.name)
            tasks: dict[int, asyncio.Task[None]] = {}
            answer: Answer = UnreadAnswer(self._generations.unread, lambda: _cancel(tasks))
            for index, each in enumerate(requests_of_choices(request)):
                choice = Choice(index, each, self._tokenizer, self._requests.prompts.chats)
                tasks[index] = asyncio.create_task(self._generations.run(choice, answer, span))
            try:
                # While the generations begin.
                await context.send_initial_metadata((ACCEPTED,))
                while tasks:
                    choice, encoded = await answer.get()
                    if encoded is not None:
                        yield encoded
                        continue
                    await tasks.pop(choice.index)
            finally:
                _cancel(tasks)
                try:
                    await asyncio.gather(*tasks.values(), return_exceptions=True)
                finally:
                    # Even if cancelled here, or unread messages would count forever.
                    answer.close()

    async def Describe(
        self, message: generation_pb2.DescribeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.DescribeResponse:
        response = generation_pb2.DescribeResponse(
            target=self._model_info,
            draft=self._draft.model_info if self._draft is not None else None,
            defaults=speculation_to_message(self._defaults),
            running=self._generations.admission.running,
            max_num_seqs=self._generations.admission.max_num_seqs,
            version=paceline.__version__,
            # None leaves a field unset.
            tokenizer=generation_pb2.TokenizerInfo(
                **self._tokenizer.special_tokens,
                chat_template=self._tokenizer.chat_template,
                refused_efforts=self._tokenizer.refused_efforts,
            ),
        )
        response.target.free_blocks, response.target.total_blocks = self._target.num_blocks
        return response

    async def Tokenize(
        self, message: generation_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.TokenIds:
        prompt = await self._requests.prompts.read(
            message,
            self._model_info,
            message.add_special_tokens if message.HasField("add_special_tokens") else True,
            message.add_generation_prompt if message.HasField("add_generation_prompt") else True,
        )
        return generation_pb2.TokenIds(ids=prompt.token_ids)

    async def Detokenize(
        self, message: generation_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.DetokenizeResponse:
        ids = self._requests.prompts.read_ids(message, self._model_info)
        skips = message.skip_special_tokens if message.HasField("skip_special_tokens") else True

        def decode() -> generation_pb2.DetokenizeResponse:
            text, offsets = self._tokenizer.decode_with_offsets(ids, skips)
            pieces = map(self._tokenizer.bytes_of, ids)
            return generation_pb2.DetokenizeResponse(text=text, pieces=pieces, text_offsets=offsets)

        return await self._tokenizer.run(decode, 4 * len(ids))

    async def _read(self, message: generation_pb2.GenerateRequest) -> Request:
        try:
            return await self._requests.read(message, self._model_info)
        except PacelineError as error:
            log_refusal(error)
            raise

    @property
    def _model_info(self) -> model_pb2.ModelInfo:
        if self._target.model_info is None:
            raise Unavailable(f"no target server at {self._target.address} is available")
        return self._target.model_info


def _cancel(tasks: dict[int, asyncio.Task[None]]) -> None:
    for task in tasks.values():
        task.cancel()
