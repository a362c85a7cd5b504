"""The Python client: `Client` for threads, `AsyncClient` for asyncio.

    with Client("127.0.0.1:50050") as client:
        for piece in client.stream("Tell me a story."):
            print(piece.text, end="")

A prompt is text (put through the model's chat template unless raw), a list of messages
{"role": ..., "content": ...}, or a list of token ids.
"""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncGenerator, Generator
from typing import Any

import grpc
import grpc.aio

from paceline.errors import InvalidArgument
from paceline.results import Completion, Deployment, Finish, Model, Piece, Speculation, Timing, TokenLogprobs
from paceline.rpc.channel import check_address, open_channel
from paceline.rpc.messages import sampling_to_message, speculation_from_message, speculation_to_message
from paceline.rpc.status import error_of_call
from paceline.sampling import SamplingParams, SpeculationParams
from paceline.v1 import generation_pb2, generation_pb2_grpc, model_pb2

__all__ = [
    "AsyncClient", "Client", "Completion", "Deployment", "Finish", "Model", "Piece", "Prompt", "Speculation", "Timing",
    "TokenLogprobs",
]  # fmt: skip

# How long an interrupted call may take to end.
STOP_TIMEOUT_S = 5.0
Prompt = str | list[dict[str, str]] | list[int]

_LETTERS = {
    generation_pb2.ORIGIN_ACCEPTED: "A",
    generation_pb2.ORIGIN_RECOVERED: "R",
    generation_pb2.ORIGIN_BONUS: "B",
    generation_pb2.ORIGIN_TARGET: "T",
}
_REASONS = {generation_pb2.FINISH_REASON_STOP: "stop", generation_pb2.FINISH_REASON_LENGTH: "length"}


class AsyncClient:
    """Speaks to a coordinator. Errors are those of `paceline.errors`."""

    def __init__(self, address: str = "127.0.0.1:50050") -> None:
        """`address`: HOST:PORT or unix:PATH. Raises InvalidArgument."""
        check_address("address", address)
        self._address = address
        self._channel = open_channel(address)
        self._stub = generation_pb2_grpc.GenerationStub(self._channel)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._channel.close()

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
    ) -> AsyncGenerator[Piece, None]:
        """Yields each round as it comes. Leaving the loop cancels the generation."""
        request = make_request(prompt, sampling, speculation, raw)
        call = self._stub.Generate(request)
        try:
            async for response in call:
                yield _piece(response)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self._address) from None
        finally:
            call.cancel()

    async def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
    ) -> Completion:
        """The whole generation; of n samples the first."""
        return (await self.complete_all(prompt, sampling, speculation, raw))[0]

    async def complete_all(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
    ) -> list[Completion]:
        """All n samples, in the order of their index."""
        completions = [Completion() for _ in range(sampling.n if sampling is not None else 1)]
        async for piece in self.stream(prompt, sampling, speculation, raw):
            completions[piece.index].add(piece)
        return completions

    async def describe(self) -> Deployment:
        """Both models, limits and defaults."""
        try:
            response = await self._stub.Describe(generation_pb2.DescribeRequest())
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self._address) from None
        return Deployment(
            target=_model(response.target),
            draft=_model(response.draft) if response.HasField("draft") else None,
            defaults=speculation_from_message(response.defaults, SpeculationParams()),
            running=response.running,
            max_running=response.max_running,
            version=response.version,
        )


class Client:
    """The same for programs without an event loop: it runs one in a thread of its own."""

    def __init__(self, address: str = "127.0.0.1:50050") -> None:
        """`address`: HOST:PORT or unix:PATH. Raises InvalidArgument."""
        # Before a thread is started that nobody would end.
        check_address("address", address)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="paceline client", daemon=True)
        self._thread.start()
        self._client = self._wait(self._connect(address))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
    ) -> Generator[Piece, None, None]:
        """Yields each round as it comes. Leaving the loop cancels the generation."""
        pieces = self._client.stream(prompt, sampling, speculation, raw)
        try:
            while (piece := self._wait(anext(pieces, None))) is not None:
                yield piece
        finally:
            self._wait(pieces.aclose())

    def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
    ) -> Completion:
        """The whole generation."""
        return self._wait(self._client.complete(prompt, sampling, speculation, raw))

    def complete_all(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
    ) -> list[Completion]:
        """All n samples, in the order of their index."""
        return self._wait(self._client.complete_all(prompt, sampling, speculation, raw))

    def describe(self) -> Deployment:
        """Both models, limits and defaults."""
        return self._wait(self._client.describe())

    @staticmethod
    async def _connect(address: str) -> AsyncClient:
        return AsyncClient(address)

    def _wait(self, awaitable: Any) -> Any:
        ended = threading.Event()

        async def run() -> Any:
            try:
                return await awaitable
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            # The caller closes what is awaited, which must not run then.
            ended.wait(STOP_TIMEOUT_S)
            raise


def make_request(
    prompt: Prompt, sampling: SamplingParams | None, speculation: SpeculationParams | None, raw: bool
) -> generation_pb2.GenerateRequest:
    """The request message; what is None is left to the coordinator. Raises InvalidArgument."""
    request = generation_pb2.GenerateRequest()
    if sampling is not None:
        request.sampling.CopyFrom(sampling_to_message(sampling))
    if speculation is not None:
        request.speculation.CopyFrom(speculation_to_message(speculation))
    if isinstance(prompt, str) and raw:
        request.text = _encodable("prompt", prompt)
    elif isinstance(prompt, str):
        request.chat.messages.add(role="user", content=_encodable("prompt", prompt))
    else:
        request.token_ids.SetInParent()
        for part in prompt:
            if isinstance(part, int):
                request.token_ids.ids.append(part)
            else:
                request.chat.messages.add(role=part["role"], content=_encodable("prompt", part["content"]))
    return request


def _encodable(name: str, text: str) -> str:
    """Raises InvalidArgument where a text holds half of a character, which UTF-8 can't."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument.field(name, text, "a text in UTF-8") from None
    return text


def _piece(response: generation_pb2.GenerateResponse) -> Piece:
    return Piece(
        text=response.text,
        token_ids=list(response.token_ids),
        origins="".join(_LETTERS[origin] for origin in response.origins),
        text_lengths=list(response.text_lengths),
        index=response.index,
        logprobs=[_logprobs(each) for each in response.logprobs],
        prompt_logprobs=[_logprobs(each) for each in response.prompt_logprobs],
        finish=_finish(response.finish) if response.HasField("finish") else None,
    )


def _model(card: model_pb2.ModelCard) -> Model:
    return Model(**{field.name: getattr(card, field.name) for field in dataclasses.fields(Model)})


def _logprobs(message: generation_pb2.TokenLogprobs) -> TokenLogprobs:
    return TokenLogprobs(message.logprob, list(message.top_token_ids), list(message.top_logprobs))


def _finish(message: generation_pb2.Finish) -> Finish:
    figures, timing = message.speculation, message.timing
    return Finish(
        reason=_REASONS[message.reason],
        prompt_tokens=message.prompt_tokens,
        cached_prompt_tokens=message.cached_prompt_tokens,
        completion_tokens=message.completion_tokens,
        seed=message.seed,
        speculation=Speculation(
            rounds=figures.rounds,
            proposed=figures.proposed,
            accepted=figures.accepted,
            proposed_per_position=list(figures.proposed_per_position),
            accepted_per_position=list(figures.accepted_per_position),
            mean_acceptance_length=figures.mean_acceptance_length,
            lenience=figures.lenience if figures.HasField("lenience") else None,
            synthetic_acceptance=figures.synthetic_acceptance if figures.HasField("synthetic_acceptance") else None,
        ),
        timing=Timing(
            ttft_ms=timing.first_token_us / 1e3,
            total_ms=timing.total_us / 1e3,
            draft_ms=timing.draft_us / 1e3,
            target_ms=timing.target_us / 1e3,
            queued_ms=timing.queued_us / 1e3,
            wire_ms=timing.wire_us / 1e3,
        ),
    )
