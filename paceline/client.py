"""The Python client: `Client` for threads, `AsyncClient` for asyncio.

    with Client("127.0.0.1:50050") as client:
        for piece in client.stream("Tell me a story."):
            print(piece.text, end="")

A prompt is text (put through the model's chat template unless raw), a list of messages
{"role": ..., "content": ...}, or a list of token ids. `RequestOptions` says what else a request may hold.
"""

import asyncio
import concurrent.futures
import contextlib
import copy
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
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
from paceline.rpc.channel import Connection, check_address
from paceline.rpc.generation import (
    Prompt,
    RequestOptions,
    deployment_from_message,
    detokenized_from_message,
    make_detokenize_request,
    make_request,
    make_tokenize_request,
    piece_from_message,
)  # fmt: skip
from paceline.rpc.metadata import KeyedChannel, trace_metadata
from paceline.rpc.status import error_of_call
from paceline.rpc.tls import Tls, find_tls
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


# How long an interrupted call may take to end.
STOP_TIMEOUT_S = 5.0
WAKE_UP_S = 0.5
CLOSED = "the client is closed"


class LoopThread:
    """Runs what is awaited, for any number of threads, until it is closed."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # Whoever finds it open hands over before the end is handed over.
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self, awaitable: Any) -> Any:
        """What `awaitable` comes to. Raises Unavailable where the loop is closed, before or meanwhile."""
        ended = threading.Event()

        async def run() -> Any:
            try:
                return await awaitable
            finally:
                ended.set()

        with self._lock:
            future = None if self._is_closed else asyncio.run_coroutine_threadsafe(run(), self._loop)
        if future is None:
            # Python warns of what is never awaited.
            awaitable.close()
            raise Unavailable(CLOSED)
        try:
            while not future.done():
                # A Ctrl-C that comes just before a thread blocks is seen when it wakes up, and not earlier.
                concurrent.futures.wait((future,), timeout=WAKE_UP_S)
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable(CLOSED) from None
        except KeyboardInterrupt:
            future.cancel()
            # The caller closes what is awaited, which must not run then.
            ended.wait(STOP_TIMEOUT_S)
            raise

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Ends all that is awaited, and `last` before; returns when the thread has ended. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                asyncio.run_coroutine_threadsafe(self._end(last), self._loop)
        self._thread.join()

    def _run(self) -> None:
        self._loop.run_forever()
        self._loop.close()

    async def _end(self, last: Callable[[], Awaitable[None]]) -> None:
        try:
            await last()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            # Those that nobody awaits just now: Python would complain when they are dropped.
            await self._loop.shutdown_asyncgens()
        finally:
            self._loop.stop()
