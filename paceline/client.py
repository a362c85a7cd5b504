"""The Python client: `Client` for threads, `AsyncClient` for asyncio.

    with Client("127.0.0.1:50050") as client:
        for piece in client.stream("Tell me a story."):
            print(piece.text, end="")

A prompt is text (put through the model's chat template unless raw), a list of messages
{"role": ..., "content": ...}, or a list of token ids. `RequestOptions` says what else a request may hold.
"""

import contextlib
import copy
from collections.abc import AsyncGenerator, Awaitable, Generator
from typing import Any, TypeVar, Unpack

import grpc
import grpc.aio

from paceline.errors import Unavailable
from paceline.keys import check_key, find_key
from paceline.results import (
    Completion,
    Deployment,
    Detokenized,
    Finish,
    Model,
    Piece,
    RoundTrace,
    Speculation,
    Timing,
    TokenizerInfo,
    TokenLogprobs,
    TracedDraft,
)  # fmt: skip
from paceline.rpc.answers import deployment_from_message, detokenized_from_message, piece_from_message
from paceline.rpc.authentication import KeyedChannel
from paceline.rpc.channel import check_address
from paceline.rpc.connection import Connection
from paceline.rpc.loop_thread import LoopThread
from paceline.rpc.requests import (
    Prompt,
    RequestOptions,
    make_detokenize_request,
    make_request,
    make_tokenize_request,
)  # fmt: skip
from paceline.rpc.status import error_of_call
from paceline.rpc.tls import Tls, find_tls
from paceline.rpc.trace_context import trace_metadata
from paceline.sampling import SamplingParams
from paceline.speculation import SpeculationParams
from paceline.v1 import generation_pb2, generation_pb2_grpc

__all__ = [
    "AsyncClient", "Client", "Completion", "Deployment", "Detokenized", "Finish", "Model", "Piece", "Prompt",
    "RequestOptions", "RoundTrace", "Speculation", "Timing", "Tls", "TokenLogprobs", "TokenizerInfo", "TracedDraft",
]  # fmt: skip

T = TypeVar("T")


class AsyncClient:
    """Speaks to a coordinator. Errors are those of `paceline.errors`."""

    def __init__(self, address: str = "127.0.0.1:50050", key: str | None = None, tls: Tls | None = None) -> None:
        """`address`: HOST:PORT or unix:PATH; `key`: None is the environment's PACELINE_API_KEY; `tls`: None is the
        environment's PACELINE_TLS_CA, _CERT and _KEY, and Tls() is none. Raises InvalidArgument, and ConfigError for
        files of `tls` that are missing or bad."""
        check_address("address", address)
        self._key = find_key(key)
        self._address = address
        self._connection, self._owns_connection = Connection(address, find_tls(tls)), True
        self._made: tuple[grpc.aio.Channel, generation_pb2_grpc.GenerationStub] | None = None
        self._trace: tuple[tuple[str, str], ...] = ()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._owns_connection:
            await self._connection.close()

    def with_key(self, key: str | None) -> "AsyncClient":
        """A client that sends this key, or none, over this one's connection, which it does not close."""
        other = self._beside()
        other._key = None if key is None else check_key("key", key)
        return other

    def with_traceparent(self, traceparent: str) -> "AsyncClient":
        """A client whose requests belong to this trace (W3C Trace Context), over this one's connection, which it does not
        close. Raises InvalidArgument."""
        other = self._beside()
        other._trace = (trace_metadata(traceparent),)
        return other

    def _beside(self) -> "AsyncClient":
        other = copy.copy(self)
        other._made, other._owns_connection = None, False
        return other

    @property
    def _stub(self) -> Any:
        """Made anew when the channel is another one."""
        channel = self._connection.channel
        if self._made is None or self._made[0] is not channel:
            self._made = channel, generation_pb2_grpc.GenerationStub(KeyedChannel(channel, self._key, *self._trace))
        return self._made[1]

    async def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[Piece, None]:
        """Yields each round as it comes. Leaving the loop cancels the generation."""
        request = make_request(prompt, sampling, speculation, raw, **options)
        call = self._stub.Generate(request)
        try:
            async for response in call:
                yield piece_from_message(response)
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
        **options: Unpack[RequestOptions],
    ) -> Completion:
        """The whole generation; of n samples the first."""
        return (await self.complete_all(prompt, sampling, speculation, raw, **options))[0]

    async def complete_all(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """All n samples, in the order of their index."""
        completions = [Completion() for _ in range(sampling.n if sampling is not None else 1)]
        async for piece in self.stream(prompt, sampling, speculation, raw, **options):
            completions[piece.index].add(piece)
        return completions

    async def describe(self) -> Deployment:
        """Both models, the tokenizer, limits and defaults."""
        return deployment_from_message(await self._answer(self._stub.Describe(generation_pb2.DescribeRequest())))

    async def tokenize(
        self,
        prompt: Prompt,
        raw: bool = False,
        *,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
        parse_special_tokens: bool = False,
    ) -> list[int]:
        """The prompt's token ids. `add_special_tokens`: of raw text; `add_generation_prompt` and `parse_special_tokens`
        (see RequestOptions): of a conversation."""
        request = make_tokenize_request(prompt, raw, add_special_tokens, add_generation_prompt, parse_special_tokens)
        return list((await self._answer(self._stub.Tokenize(request))).ids)

    async def detokenize(self, ids: list[int], *, skip_special_tokens: bool = True) -> Detokenized:
        """The text of `ids`, and the bytes of each. `skip_special_tokens`: from the text alone."""
        request = make_detokenize_request(ids, skip_special_tokens)
        return detokenized_from_message(await self._answer(self._stub.Detokenize(request)))

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self._address) from None


class Client:
    """The same for programs without an event loop: it runs one in a thread of its own."""

    def __init__(self, address: str = "127.0.0.1:50050", key: str | None = None, tls: Tls | None = None) -> None:
        """`address`, `key` and `tls`: as of AsyncClient. Raises InvalidArgument, ConfigError."""
        # Before a thread is started that nobody would end.
        check_address("address", address)
        found, files = find_key(key), find_tls(tls)
        if files:
            files.client_context()
        self._loop = LoopThread("paceline client")
        self._client: AsyncClient = self._loop.wait(self._connect(address, found, files))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends calls in flight: whoever waits in another thread gets Unavailable. A second call does nothing."""
        self._loop.close(self._client.close)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Generator[Piece, None, None]:
        """Yields each round as it comes. Leaving the loop cancels the generation."""
        pieces = self._client.stream(prompt, sampling, speculation, raw, **options)
        try:
            while (piece := self._loop.wait(anext(pieces, None))) is not None:
                yield piece
        finally:
            # A client that is closed has ended it.
            with contextlib.suppress(Unavailable):
                self._loop.wait(pieces.aclose())

    def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Completion:
        """The whole generation."""
        return self._loop.wait(self._client.complete(prompt, sampling, speculation, raw, **options))

    def complete_all(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """All n samples, in the order of their index."""
        return self._loop.wait(self._client.complete_all(prompt, sampling, speculation, raw, **options))

    def describe(self) -> Deployment:
        """Both models, the tokenizer, limits and defaults."""
        return self._loop.wait(self._client.describe())

    def tokenize(
        self,
        prompt: Prompt,
        raw: bool = False,
        *,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
        parse_special_tokens: bool = False,
    ) -> list[int]:
        """The prompt's token ids. `add_special_tokens`: of raw text; `add_generation_prompt` and `parse_special_tokens`
        (see RequestOptions): of a conversation."""
        return self._loop.wait(
            self._client.tokenize(
                prompt,
                raw,
                add_special_tokens=add_special_tokens,
                add_generation_prompt=add_generation_prompt,
                parse_special_tokens=parse_special_tokens,
            )
        )

    def detokenize(self, ids: list[int], *, skip_special_tokens: bool = True) -> Detokenized:
        """The text of `ids`, and the bytes of each. `skip_special_tokens`: from the text alone."""
        return self._loop.wait(self._client.detokenize(ids, skip_special_tokens=skip_special_tokens))

    @staticmethod
    async def _connect(address: str, key: str | None, tls: Tls) -> AsyncClient:
        return AsyncClient(address, key, tls)
