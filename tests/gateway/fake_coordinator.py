"""A coordinator without servers, which answers as a test says."""

from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc

from paceline.errors import PacelineError
from paceline.rpc.status import abort_with
from paceline.v1 import generation_pb2, generation_pb2_grpc, model_pb2


class FakeCoordinator(generation_pb2_grpc.GenerationServicer):
    """Keeps what it is asked. Answers each sample with `rounds`: `{}` of a token drawn and a token forced, and its end.

    error: comes behind the rounds, in place of the end.
    """

    def __init__(self) -> None:
        self.asked: list[generation_pb2.GenerateRequest] = []
        self.error: PacelineError | None = None
        forced = (generation_pb2.ORIGIN_TARGET, generation_pb2.ORIGIN_FORCED)
        self.rounds: Sequence[generation_pb2.GenerateResponse] = [
            generation_pb2.GenerateResponse(token_ids=[1, 2], text="{}", text_lengths=[1, 1], origins=forced)
        ]
        self.reason: generation_pb2.FinishReason = generation_pb2.FINISH_REASON_STOP
        # Facts of the end besides.
        self.end = generation_pb2.GenerateResponse()
        self.chat_template, self.max_model_len = "", 64
        self.refused_efforts: Sequence[str] = ()

    async def Describe(self, request: Any, context: Any) -> generation_pb2.DescribeResponse:
        return generation_pb2.DescribeResponse(
            target=model_pb2.ModelInfo(name="tiny", max_model_len=self.max_model_len, vocab_size=9),
            tokenizer=generation_pb2.TokenizerInfo(
                chat_template=self.chat_template, refused_efforts=self.refused_efforts
            ),
        )

    async def Detokenize(self, request: Any, context: Any) -> generation_pb2.DetokenizeResponse:
        return generation_pb2.DetokenizeResponse(pieces=[str(each).encode() for each in request.token_ids])

    async def Generate(self, request: Any, context: Any) -> AsyncIterator[generation_pb2.GenerateResponse]:
        self.asked.append(request)
        for each in self.rounds:
            for index in range(request.sampling.n):
                answer = generation_pb2.GenerateResponse(index=index)
                answer.MergeFrom(each)
                if request.trace:
                    answer.trace.drafter = "none"
                yield answer
        if self.error is not None:
            await abort_with(context, self.error)
        for index in range(request.sampling.n):
            end = generation_pb2.GenerateResponse(index=index)
            end.MergeFrom(self.end)
            end.finish.reason = self.reason
            end.finish.speculation.forced = 1
            yield end


async def serve(servicer: generation_pb2_grpc.GenerationServicer, address: str) -> grpc.aio.Server:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    await server.start()
    return server
