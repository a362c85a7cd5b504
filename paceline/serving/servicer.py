"""The Session stream and the unary commands, for draft and target."""

import asyncio
import contextlib
import logging
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio

from paceline.checks import require, require_at_most
from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.engine import Engine
from paceline.engine.scheduling.commands import Answer, Command, Fork, Open, Opened, Refuse, Release, Truncate
from paceline.engine.scheduling.session import Session as EngineSession
from paceline.errors import InvalidArgument, NotFound, OutOfRange, PacelineError
from paceline.grammar import GRAMMAR_ENGINE, MAX_GRAMMAR_CHARACTERS, GrammarEngine
from paceline.observability.logs import with_fields
from paceline.rpc.channel import MAX_COMMANDS, SPLIT_BYTES
from paceline.rpc.messages import PROTOCOL_VERSION, sampling_from_message
from paceline.rpc.status import status_of
from paceline.sampling import MAX_ID_CHARACTERS, MAX_LISTED_IDS, MAX_SALT_CHARACTERS
from paceline.v1 import model_pb2
from paceline.vocabulary import SharedVocabulary

log = logging.getLogger(__name__)
# A stream carries a message at least this often, for the client that waits, and none without answers more often than this.
HEARTBEAT_S, NEWS_S = 1.0, 0.1
# How long accepted commands may take when the server ends with sequences left.
LAST_COMMANDS_S = 3.0
MAX_UINT32 = 2**32 - 1
# Answers and the number of engine steps so far; None ends the stream.
Outbox = asyncio.Queue[tuple[list[Answer], int, model_pb2.Load | None] | None]


@dataclass(slots=True, eq=False)
class Stream:
    outbox: Outbox = field(default_factory=asyncio.Queue)
    # What its client's generations need.
    demand: model_pb2.Demand = field(default_factory=model_pb2.Demand)
    # Of its client's target, if that has another tokenizer.
    vocabulary: SharedVocabulary | None = None
    # Set if the next heartbeat is due early.
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    reader: asyncio.Task[None] | None = None
    is_drained: bool = False


class ModelServicer(ABC):
    """Base of both services. A subclass adds one job: its command message and its answer."""

    # DraftResponse or TargetResponse.
    response_class: type[Any]

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._instance_id = secrets.token_hex(8)
        model = engine.model
        self._grammars = GrammarEngine(engine.tokenizer_files["tokenizer.json"], model.vocab_size, model.eos_token_ids)
        self._forward_times: asyncio.Task[list[tuple[int, float]]] | None = None
        self._sessions: dict[str, EngineSession] = {}
        self._streams: set[Stream] = set()
        self._is_draining = False

    @abstractmethod
    def parse_job(self, command: Any) -> Command:
        """Converts this service's own command. Raises InvalidArgument."""

    def parse_vocabulary(self, request: Any) -> SharedVocabulary | None:
        """Converts a message's vocabulary, if it has one. Raises InvalidArgument."""
        return None

    @abstractmethod
    def fill_answer(self, message: Any, result: Any) -> None:
        """Writes a job's result, or a part of it, to its answer message."""

    def split_result(self, result: Any) -> Iterable[Any]:
        """Splits a job's result into messages, the answer last. By default it is one."""
        return (result,)

    async def Session(self, requests: AsyncIterator[Any], context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        stream = Stream()
        outbox = stream.outbox
        session = self._engine.worker.open_session(lambda answers, steps: outbox.put_nowait((answers, steps, None)))
        session_id = secrets.token_hex(8)
        self._sessions[session_id] = session
        stream.reader = reader = asyncio.create_task(self._read(requests, session, stream))
        heart = asyncio.create_task(self._beat(stream))
        self._streams.add(stream)
        try:
            hello = model_pb2.Hello(session_id=session_id, instance_id=self._instance_id)
            yield self.response_class(hello=hello)
            while (ready := await outbox.get()) is not None:
                for message in self._responses(*ready):
                    yield message
            # The reader has ended: with an error if the stream did.
            if not stream.is_drained:
                await reader
        finally:
            self._streams.discard(stream)
            heart.cancel()
            reader.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await reader
            del self._sessions[session_id]
            self._engine.worker.close_session(session)

    async def Describe(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        engine = self._engine
        forward_times = await self.forward_times()
        return model_pb2.ModelCard(
            name=engine.config.model,
            dtype=engine.config.dtype,
            quantization=engine.config.quantization,
            implementation=engine.model.implementation,
            weights_fingerprint=engine.weights_fingerprint,
            tokenizer_fingerprint=engine.tokenizer_fingerprint,
            vocab_size=engine.model.vocab_size,
            max_model_len=engine.max_model_len,
            eos_token_ids=engine.model.eos_token_ids,
            block_size=engine.pool.block_size,
            total_blocks=engine.pool.num_blocks,
            free_blocks=engine.pool.num_free,
            num_states=engine.pool.states.num_slots,
            instance_id=self._instance_id,
            protocol_version=PROTOCOL_VERSION,
            arithmetic=engine.check.arithmetic,
            batch_invariant=not engine.check.variant_parts,
            device=engine.config.device,
            device_ids=engine.device_ids,
            max_num_batched_tokens=engine.config.max_num_batched_tokens,
            kv_cache_dtype=engine.config.kv_dtype,
            forward_times=[
                model_pb2.ForwardTime(num_tokens=num_tokens, microseconds=seconds * 1e6)
                for num_tokens, seconds in forward_times
            ],
            num_mask_tokens=engine.num_masks,
            multi_steps=engine.multi_steps,
            grammar_engine=GRAMMAR_ENGINE,
        )

    async def forward_times(self) -> list[tuple[int, float]]:
        """Returns (tokens, seconds) of forwards, measured at the first call: while services start, they disturb each other.

        For a large model on a busy machine that takes longer than a caller waits: the next call finds what this one began.
        """
        times = self._forward_times
        if times is None or (times.done() and (times.cancelled() or times.exception())):
            times = self._forward_times = asyncio.create_task(self._measure())
        return await asyncio.shield(times)

    async def _measure(self) -> list[tuple[int, float]]:
        times = await self._engine.worker.call(self._engine.measure_forward_times)
        self._engine.worker.load.expect(times)
        return times

    async def Tokenizer(self, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        for name, data in self._engine.tokenizer_files.items():
            for start in range(0, max(1, len(data)), SPLIT_BYTES):
                yield model_pb2.TokenizerPiece(file_name=name, data=data[start : start + SPLIT_BYTES])

    async def Truncate(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        session = self._find_session(request.session_id)
        length = await self._engine.worker.call(lambda: session.truncate_now(request.sequence_id, request.length))
        return model_pb2.TruncateResponse(cache_length=length)

    async def Release(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        session = self._find_session(request.session_id)
        await self._engine.worker.call(lambda: session.release_now(request.sequence_id))
        return model_pb2.ReleaseResponse()

    async def drain(self, timeout_s: float) -> None:
        """Waits up to `timeout_s` for the sequences to end. Then it rejects new commands, finishes accepted ones soon, and
        ends all streams.
        """
        worker = self._engine.worker
        self._is_draining = True
        for stream in self._streams:
            stream.has_news.set()
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s and worker.num_sequences:
            await asyncio.sleep(0.02)
        for stream in self._streams:
            stream.is_drained = True
            if stream.reader is not None:
                stream.reader.cancel()
        deadline_s = time.monotonic() + LAST_COMMANDS_S
        while time.monotonic() < deadline_s and await worker.call(lambda: worker.is_busy):
            await asyncio.sleep(0.02)
        for stream in self._streams:
            stream.outbox.put_nowait(None)

    def check_tokens(self, name: str, tokens: Iterable[int]) -> None:
        _check_ids(name, tokens, self._engine.model.vocab_size)

    def _find_session(self, session_id: str) -> EngineSession:
        if session_id not in self._sessions:
            raise NotFound(f"session {session_id[:80]!r} is not open")
        return self._sessions[session_id]

    async def _read(self, requests: AsyncIterator[Any], session: EngineSession, stream: Stream) -> None:
        try:
            async for request in requests:
                # Ends the stream: answers to millions of commands would exhaust memory.
                require_at_most(MAX_COMMANDS, len(request.commands), "commands", "commands in a message")
                if request.HasField("demand"):
                    stream.demand = request.demand
                    self._tell_others(stream)
                stream.vocabulary = self.parse_vocabulary(request) or stream.vocabulary
                commands = [self._parse(command, stream.vocabulary) for command in request.commands]
                self._engine.worker.submit(session, commands)
        except asyncio.CancelledError:
            # Drained: answers may follow, and `drain` ends the stream.
            raise
        except BaseException:
            stream.outbox.put_nowait(None)
            raise
        stream.outbox.put_nowait(None)

    async def _beat(self, stream: Stream) -> None:
        while True:
            stream.outbox.put_nowait(([], self._engine.worker.num_steps, self._load_for(stream)))
            stream.has_news.clear()
            await asyncio.sleep(NEWS_S)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stream.has_news.wait(), HEARTBEAT_S - NEWS_S)

    def _load_for(self, stream: Stream) -> model_pb2.Load:
        worker = self._engine.worker
        others = [each.demand for each in self._streams if each is not stream]
        return model_pb2.Load(
            others=model_pb2.Demand(
                num_generations=min(MAX_UINT32, sum(each.num_generations for each in others)),
                reserved_tokens=min(MAX_UINT32, sum(each.reserved_tokens for each in others)),
            ),
            num_others=sum(each.num_generations > 0 for each in others),
            free_blocks=self._engine.pool.num_free,
            busy=worker.load.busy(worker.step_s),
            slowdown=worker.load.slowdown,
            is_draining=self._is_draining,
        )

    def _tell_others(self, stream: Stream) -> None:
        for each in self._streams:
            if each is not stream:
                each.has_news.set()

    def _parse(self, message: Any, vocabulary: SharedVocabulary | None) -> Command:
        """Converts a command. An invalid one becomes a Refuse, which fails in the sequence's order."""
        ids = (message.command_id, message.sequence_id)
        try:
            match message.WhichOneof("command"):
                case "open":
                    options = replace(_options(message.open), vocabulary=vocabulary)
                    if message.open.grammar:
                        require(vocabulary is None, "grammar", "set", "left out with a SharedVocabulary")
                        options = replace(options, grammar=self._grammars.grammar(message.open.grammar))
                    # An id outside the vocabulary would fail the engine step that bans it, for every job.
                    vocab_size, drawn = self._engine.model.vocab_size, None
                    if vocabulary is not None:
                        vocab_size, drawn = vocabulary.target_vocab_size, vocabulary.in_target
                    _check_ids("eos_token_ids", options.eos_token_ids, vocab_size)
                    options.sampling.check_token_ids(vocab_size, options.eos_token_ids, drawn)
                    _log_opened(message.sequence_id, options)
                    return Open(*ids, options)
                case "fork":
                    return Fork(*ids, message.fork.parent_sequence_id, message.fork.length)
                case "truncate":
                    return Truncate(*ids, message.truncate.length)
                case "release":
                    return Release(*ids)
                case None:
                    raise InvalidArgument.of_value("command", None, "set")
                case kind:
                    # Before it is copied.
                    self._check_tail(len(getattr(message, kind).tail_tokens))
                    return self.parse_job(message)
        except PacelineError as error:
            return Refuse(*ids, error)

    def _check_tail(self, num_tokens: int) -> None:
        if num_tokens > self._engine.max_model_len:
            raise OutOfRange(
                f"tail_tokens holds {num_tokens} tokens; the model's maximum is {self._engine.max_model_len}"
            )

    def _responses(self, answers: list[Answer], steps: int, load: model_pb2.Load | None) -> Iterable[Any]:
        response = self.response_class(engine_steps=steps, load=load)
        size = 0
        for answer in answers:
            for part in self._parts(answer.result):
                message = response.answers.add()
                message.command_id = answer.command_id
                self._fill(message, part, answer.cache_length)
                size += message.ByteSize()
                if size > SPLIT_BYTES:
                    yield response
                    response, size = self.response_class(engine_steps=steps), 0
        yield response

    def _parts(self, result: Any) -> Iterable[Any]:
        return (result,) if isinstance(result, PacelineError | Opened) else self.split_result(result)

    def _fill(self, message: Any, part: Any, cache_length: int | None) -> None:
        if isinstance(part, PacelineError):
            message.failure.status.CopyFrom(status_of(part))
            if cache_length is not None:
                message.failure.cache_length = cache_length
        elif isinstance(part, Opened):
            message.opened.SetInParent()
        else:
            self.fill_answer(message, part)


def _check_ids(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    worst = max(tokens, default=0)
    # The text is made only for an error: this runs for every command.
    if worst >= vocab_size:
        raise InvalidArgument.of_value(name, worst, f"token ids in [0, {vocab_size})")


def _log_opened(sequence_id: int, options: SequenceOptions) -> None:
    fields = {"request_id": options.request_id, "sequence": sequence_id, "prompt_tokens": options.num_prompt_tokens}
    log.info("sequence opened", extra=with_fields(**fields))


def _options(message: model_pb2.Open) -> SequenceOptions:
    sampling = sampling_from_message(message.sampling)
    require(sampling.seed is not None, "sampling.seed", None, "set: servers do not make seeds")
    require_at_most(MAX_LISTED_IDS, len(message.eos_token_ids), "eos_token_ids", "token ids")
    require_at_most(MAX_SALT_CHARACTERS, len(message.cache_salt), "cache_salt", "characters")
    require_at_most(MAX_ID_CHARACTERS, len(message.request_id), "request_id", "characters")
    require_at_most(MAX_ID_CHARACTERS, len(message.traceparent), "traceparent", "characters")
    require_at_most(MAX_GRAMMAR_CHARACTERS, len(message.grammar), "grammar", "characters")
    return SequenceOptions(
        sampling, message.num_prompt_tokens, tuple(message.eos_token_ids), message.cache_salt, message.request_id,
        message.traceparent,
    )  # fmt: skip
