"""The Python client: `Client` for threads, `AsyncClient` for asyncio.

A prompt is text (put through the model's chat template unless `raw`), a list of messages
{"role": ..., "content": ...}, a list of token ids, or an `Infill` for the text between two others.
"""

import asyncio
import concurrent.futures
import contextlib
import copy
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from typing import Any, TypeVar, Unpack

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from paceline.errors import ConnectionLost, PacelineError, Unavailable, Unreachable
from paceline.keys import check_key, find_key
from paceline.results import (
    Chunk,
    Completion,
    Deployment,
    Detokenized,
    Finish,
    Model,
    RoundTrace,
    Speculation,
    Timing,
    TokenizerInfo,
    TokenLogprobs,
    TracedDraft,
)  # fmt: skip
from paceline.rpc.channel import COORDINATOR_ADDRESS, ReloadingChannel, check_address
from paceline.rpc.generation_messages import (
    Prompt,
    RequestOptions,
    chunk_from_message,
    deployment_from_message,
    detokenized_from_message,
    make_detokenize_request,
    make_request,
    make_tokenize_request,
)  # fmt: skip
from paceline.rpc.health import LIVE
from paceline.rpc.metadata import KeyedChannel, trace_metadata
from paceline.rpc.status import error_of_call, is_accepted
from paceline.rpc.tls import Tls, find_tls
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2, generation_pb2_grpc

__all__ = [
    "AsyncClient",
    "Chunk",
    "Client",
    "Completion",
    "Deployment",
    "Detokenized",
    "Finish",
    "Model",
    "Prompt",
    "RequestOptions",
    "RoundTrace",
    "Speculation",
    "Timing",
    "Tls",
    "TokenLogprobs",
    "TokenizerInfo",
    "TracedDraft",
]  # fmt: skip

T = TypeVar("T")
_UNDECIDED = (grpc.ChannelConnectivity.IDLE, grpc.ChannelConnectivity.CONNECTING)


class AsyncClient:
    """Calls a coordinator. Raises the errors of `paceline.errors`."""

    def __init__(self, address: str = COORDINATOR_ADDRESS, key: str | None = None, tls: Tls | None = None) -> None:
        """Raises InvalidArgument and ConfigError.

        address: HOST:PORT or unix:PATH.
        key: API key; defaults to $PACELINE_API_KEY.
        tls: defaults to the files in $PACELINE_TLS_CA, _CERT and _KEY; Tls() turns TLS off.
        """
        check_address("address", address)
        self._key = find_key(key)
        self._address = address
        self._connection, self._owns_connection = ReloadingChannel(address, find_tls(tls)), True
        self._made: tuple[grpc.aio.Channel, generation_pb2_grpc.GenerationStub] | None = None
        self._trace: tuple[tuple[str, str], ...] = ()
        # In flight, of all clients of this connection.
        self._calls: set[grpc.aio.Call] = set()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._owns_connection:
            await self._connection.close()

    def with_key(self, key: str | None) -> "AsyncClient":
        """Returns a client that sends this key, or none, over the same connection, which it does not close."""
        other = self._sibling()
        other._key = None if key is None else check_key("key", key)
        return other

    def with_traceparent(self, traceparent: str) -> "AsyncClient":
        """Returns a client whose requests join this W3C trace, over the same connection. Raises InvalidArgument."""
        other = self._sibling()
        other._trace = (trace_metadata(traceparent),)
        return other

    def _sibling(self) -> "AsyncClient":
        other = copy.copy(self)
        other._made, other._owns_connection = None, False
        return other

    @property
    def _stub(self) -> Any:
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
        *,
        on_accepted: Callable[[], None] | None = None,
        **options: Unpack[RequestOptions],
    ) -> AsyncGenerator[Chunk, None]:
        """Yields a chunk per round. Leaving the loop cancels the generation.

        `on_accepted` is called when the coordinator has read the request.
        """
        request = make_request(prompt, sampling, speculation, raw, **options)
        with self._in_flight(await self._is_connected(), self._stub.Generate(request)) as call:
            if on_accepted is not None:
                watching = asyncio.ensure_future(_tell_when_accepted(call, on_accepted))
                call.add_done_callback(lambda _: watching.cancel())
            async for response in call:
                yield chunk_from_message(response)

    async def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Completion:
        """Returns the whole generation; the first of n samples."""
        return (await self.complete_all(prompt, sampling, speculation, raw, **options))[0]

    async def complete_all(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """Returns all n samples, ordered by index."""
        completions = [Completion() for _ in range(sampling.n if sampling is not None else 1)]
        async for chunk in self.stream(prompt, sampling, speculation, raw, **options):
            completions[chunk.index].add(chunk)
        return completions

    async def describe(self) -> Deployment:
        return deployment_from_message(await self._answer("Describe", generation_pb2.DescribeRequest()))

    async def tokenize(
        self,
        prompt: Prompt,
        raw: bool = False,
        *,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
        parse_special_tokens: bool = False,
        template_options: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        """Returns the prompt's token ids.

        `add_special_tokens` applies to raw text, the others to conversations.
        """
        request = make_tokenize_request(
            prompt, raw, add_special_tokens, add_generation_prompt, parse_special_tokens, template_options, tools
        )
        return list((await self._answer("Tokenize", request)).ids)

    async def detokenize(self, ids: list[int], *, skip_special_tokens: bool = True) -> Detokenized:
        """Returns the text and the bytes of each id. `skip_special_tokens` affects the text only."""
        request = make_detokenize_request(ids, skip_special_tokens)
        return detokenized_from_message(await self._answer("Detokenize", request))

    async def check_alive(self) -> None:
        """Returns when the coordinator has answered a health check, anything. Raises Unreachable."""
        request = health_pb2.HealthCheckRequest(service=LIVE)
        try:
            with self._in_flight(False, health_pb2_grpc.HealthStub(self._connection.channel).Check(request)) as call:
                await call
        except Unreachable:
            raise
        except PacelineError:
            pass

    def drop_calls(self) -> None:
        """Ends all calls in flight over this connection: they raise ConnectionLost."""
        dropped = list(self._calls)
        self._calls.clear()
        for call in dropped:
            call.cancel()

    async def _answer(self, method: str, request: Any) -> Any:
        with self._in_flight(await self._is_connected(), getattr(self._stub, method)(request)) as call:
            return await call

    async def _is_connected(self) -> bool:
        """Waits until the connection is there or can't be made, so that a call that fails tells which."""
        channel = self._connection.channel
        while (state := channel.get_state(try_to_connect=True)) in _UNDECIDED:
            await channel.wait_for_state_change(state)
        return state is grpc.ChannelConnectivity.READY

    @contextlib.contextmanager
    def _in_flight(self, is_connected: bool, call: Any) -> Generator[Any, None, None]:
        """Translates a call's errors; cancels it at the end."""
        self._calls.add(call)
        try:
            yield call
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error, self._address, is_connected) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if call in self._calls or (task is not None and task.cancelling()):
                raise
            kind = ConnectionLost if is_connected else Unreachable
            raise kind(self._address, "it does not answer") from None
        finally:
            self._calls.discard(call)
            call.cancel()


async def _tell_when_accepted(call: Any, on_accepted: Callable[[], None]) -> None:
    if is_accepted(await call.initial_metadata()):
        on_accepted()


class Client:
    """A synchronous AsyncClient: runs an event loop in its own thread."""

    def __init__(self, address: str = COORDINATOR_ADDRESS, key: str | None = None, tls: Tls | None = None) -> None:
        # Before a thread is started.
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
        """Ends calls in flight: callers in other threads get Unavailable. Idempotent."""
        self._loop.close(self._client.close)

    def stream(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Generator[Chunk, None, None]:
        """Yields a chunk per round. Leaving the loop cancels the generation."""
        chunks = self._client.stream(prompt, sampling, speculation, raw, **options)
        try:
            while (chunk := self._loop.wait(anext(chunks, None))) is not None:
                yield chunk
        finally:
            # Not waited for: the collector may end an abandoned stream on any thread, also on the loop's own.
            self._loop.begin(chunks.aclose())

    def complete(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> Completion:
        """Returns the whole generation; the first of n samples."""
        return self._loop.wait(self._client.complete(prompt, sampling, speculation, raw, **options))

    def complete_all(
        self,
        prompt: Prompt,
        sampling: SamplingParams | None = None,
        speculation: SpeculationParams | None = None,
        raw: bool = False,
        **options: Unpack[RequestOptions],
    ) -> list[Completion]:
        """Returns all n samples, ordered by index."""
        return self._loop.wait(self._client.complete_all(prompt, sampling, speculation, raw, **options))

    def describe(self) -> Deployment:
        return self._loop.wait(self._client.describe())

    def tokenize(
        self,
        prompt: Prompt,
        raw: bool = False,
        *,
        add_special_tokens: bool = True,
        add_generation_prompt: bool = True,
        parse_special_tokens: bool = False,
        template_options: dict[str, Any] | None = None,
        tools: list[dict[str, Any]] | None = None,
    ) -> list[int]:
        return self._loop.wait(
            self._client.tokenize(
                prompt,
                raw,
                add_special_tokens=add_special_tokens,
                add_generation_prompt=add_generation_prompt,
                parse_special_tokens=parse_special_tokens,
                template_options=template_options,
                tools=tools,
            )
        )

    def detokenize(self, ids: list[int], *, skip_special_tokens: bool = True) -> Detokenized:
        return self._loop.wait(self._client.detokenize(ids, skip_special_tokens=skip_special_tokens))

    @staticmethod
    async def _connect(address: str, key: str | None, tls: Tls) -> AsyncClient:
        return AsyncClient(address, key, tls)


# Timeout for an interrupted call to end.
STOP_TIMEOUT_S = 5.0
WAKE_UP_S = 0.5
CLOSED = "the client is closed"


class LoopThread:
    """An event loop in its own thread, for any number of threads."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        # So that no work is handed over after the end. Re-entrant: the collector may end a stream while it is held.
        self._lock = threading.RLock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wait(self, awaitable: Any) -> Any:
        """Raises Unavailable if the loop is or gets closed."""
        ended = threading.Event()

        async def run() -> Any:
            try:
                return await awaitable
            finally:
                ended.set()

        if (future := self._submit(run, awaitable)) is None:
            raise Unavailable(CLOSED)
        try:
            while not future.done():
                # Ctrl-C just before the thread blocks is noticed only when it wakes up.
                concurrent.futures.wait((future,), timeout=WAKE_UP_S)
            return future.result()
        except concurrent.futures.CancelledError:
            raise Unavailable(CLOSED) from None
        except KeyboardInterrupt:
            future.cancel()
            # The caller closes `awaitable`, which must not be running.
            ended.wait(STOP_TIMEOUT_S)
            raise

    def begin(self, awaitable: Any) -> None:
        """Hands work over without waiting for it. A closed loop has ended it already."""

        async def run() -> None:
            await awaitable

        self._submit(run, awaitable)

    def _submit(self, run: Callable[[], Coroutine[Any, Any, T]], awaitable: Any) -> concurrent.futures.Future[T] | None:
        """Returns None if the loop is closed."""
        with self._lock:
            if not self._is_closed:
                return asyncio.run_coroutine_threadsafe(run(), self._loop)
        # Otherwise Python warns that it was never awaited.
        awaitable.close()
        return None

    def close(self, last: Callable[[], Awaitable[None]]) -> None:
        """Awaits `last`, cancels everything else and joins the thread. Idempotent."""
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
            # Also generators that nobody awaits now.
            await self._loop.shutdown_asyncgens()
        finally:
            self._loop.stop()
