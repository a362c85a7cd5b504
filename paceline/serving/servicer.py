"""The Model service: the Session stream and the unary commands. Its kinds of jobs are registered with it."""

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import grpc.aio

from paceline.checks import require, require_at_most
from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.engine import Engine
from paceline.engine.forward_times import MeasuredTimes
from paceline.engine.scheduling.commands import Answer, Command, Fork, Open, OpenAck, Refuse, Release, Truncate
from paceline.engine.scheduling.session import Session as EngineSession
from paceline.errors import InvalidArgument, NotFound, OutOfRange, PacelineError
from paceline.grammar import GRAMMAR_ENGINE, MAX_GRAMMAR_CHARACTERS, GrammarEngine
from paceline.observability.logs import with_fields
from paceline.rpc.channel import MAX_COMMANDS, SPLIT_BYTES
from paceline.rpc.heartbeat import HEARTBEAT_S
from paceline.rpc.model_messages import PROTOCOL_VERSION, sampling_from_message, vocabulary_from_message
from paceline.rpc.status import status_of
from paceline.sampling_params import MAX_ID_CHARACTERS, MAX_LISTED_IDS, MAX_SALT_CHARACTERS
from paceline.serving.job_kind import JobKind, check_ids
from paceline.v1 import model_pb2
from paceline.vocabulary import SharedVocabulary

log = logging.getLogger(__name__)
# A stream carries no message without answers more often than this.
NEWS_S = 0.1
# How long accepted commands may take when the server ends with sequences left.
LAST_COMMANDS_S = 3.0
MAX_UINT32 = 2**32 - 1
# Answers and the number of engine steps so far; None ends the stream.
Outbox = asyncio.Queue[tuple[list[Answer], int, model_pb2.Load | None] | None]


@dataclass(slots=True, eq=False)
class Stream:
    outbox: Outbox = field(default_factory=asyncio.Queue)
    # What its client's generations need.
    reservation: model_pb2.Reservation = field(default_factory=model_pb2.Reservation)
    # Of its client's target, if that has another tokenizer.
    vocabulary: SharedVocabulary | None = None
    # Set if the next heartbeat is due early.
    has_news: asyncio.Event = field(default_factory=asyncio.Event)
    reader: asyncio.Task[None] | None = None
    is_drained: bool = False


class ModelServicer:
    def __init__(
        self, engine: Engine, role: str, kinds: Sequence[JobKind], draft: "ModelServicer | None" = None
    ) -> None:
        """`role`: as in the model info. `kinds`: of the jobs that the server executes, one for each command.

        `draft`: of the draft model in the same process.
        """
        self._engine = engine
        self.instance_id: str = secrets.token_hex(8)
        self._draft_instance_id = "" if draft is None else draft.instance_id
        self._role = role
        self._kinds = {command: kind for kind in kinds for command in kind.commands}
        self._kinds_by_result = {kind.result_class: kind for kind in kinds}
        self._allowed_commands = f"one of open, fork, truncate, release, {', '.join(self._kinds)} at a {role} server"
        model = engine.model
        self._grammars = GrammarEngine(engine.tokenizer_files["tokenizer.json"], model.vocab_size, model.eos_token_ids)
        self._forward_times: asyncio.Task[MeasuredTimes] | None = None
        self._sessions: dict[str, EngineSession] = {}
        self._streams: set[Stream] = set()
        self._is_draining = False

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
            session_info = model_pb2.SessionInfo(session_id=session_id, instance_id=self.instance_id)
            yield model_pb2.SessionResponse(session_info=session_info)
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
        times, head = await self.forward_times(), engine.draft_head
        draft_head = None if head is None else model_pb2.DraftHead(
            name=head.name, format=head.format, weights_fingerprint=head.weights_fingerprint,
            forward_times=_forward_times(times.of_head),
        )  # fmt: skip
        return model_pb2.ModelInfo(
            name=engine.config.model,
            dtype=engine.config.dtype,
            quantization=engine.quantization,
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
            instance_id=self.instance_id,
            draft_instance_id=self._draft_instance_id,
            protocol_version=PROTOCOL_VERSION,
            numerics=engine.check.numerics,
            batch_invariant=not engine.check.variant_parts,
            device=engine.config.device,
            device_ids=engine.device_ids,
            max_num_batched_tokens=engine.config.max_num_batched_tokens,
            kv_cache_dtype=engine.config.kv_dtype,
            forward_times=_forward_times(engine.worker.times.points),
            draft_head=draft_head,
            num_mask_tokens=engine.num_masks,
            multi_steps=engine.multi_steps,
            grammar_engine=GRAMMAR_ENGINE,
            role=self._role,
        )

    async def forward_times(self) -> MeasuredTimes:
        """Returns the times of forwards, measured at the first call: while services start, they disturb each other.

        For a large model on a busy machine that takes longer than a caller waits: the next call finds what this one began.
        """
        times = self._forward_times
        if times is None or (times.done() and (times.cancelled() or times.exception())):
            times = self._forward_times = asyncio.create_task(self._measure())
        return await asyncio.shield(times)

    async def _measure(self) -> MeasuredTimes:
        worker = self._engine.worker

        def measure() -> MeasuredTimes:
            times = self._engine.measure_forward_times()
            # Before the next step, which learns from it.
            worker.times.begin(times.of_model)
            return times

        return await worker.call(measure)

    async def Tokenizer(self, request: Any, context: grpc.aio.ServicerContext) -> AsyncIterator[Any]:
        for name, data in self._engine.tokenizer_files.items():
            for start in range(0, max(1, len(data)), SPLIT_BYTES):
                yield model_pb2.TokenizerChunk(file_name=name, data=data[start : start + SPLIT_BYTES])

    async def Truncate(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        session = self._find_session(request.session_id)
        length = await self._engine.worker.call(lambda: session.truncate_now(request.sequence_id, request.length))
        return model_pb2.TruncateResponse(cache_length=length)

    async def Release(self, request: Any, context: grpc.aio.ServicerContext) -> Any:
        session = self._find_session(request.session_id)
        await self._engine.worker.call(lambda: session.release_now(request.sequence_id))
        return model_pb2.ReleaseResponse()

    def execute(self, session_id: str, commands: list[model_pb2.Command]) -> None:
        """Executes commands as if they had come by the session's stream. Does nothing if it has ended. Thread-safe."""
        session = self._sessions.get(session_id)
        if session is not None:
            self._engine.worker.submit(session, [self._parse(command, None) for command in commands])

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

    def _find_session(self, session_id: str) -> EngineSession:
        if session_id not in self._sessions:
            raise NotFound(f"session {session_id[:80]!r} is not open")
        return self._sessions[session_id]

    async def _read(self, requests: AsyncIterator[Any], session: EngineSession, stream: Stream) -> None:
        try:
            async for request in requests:
                # Ends the stream: answers to millions of commands would exhaust memory.
                require_at_most(MAX_COMMANDS, len(request.commands), "commands", "commands in a message")
                if request.HasField("reservation"):
                    stream.reservation = request.reservation
                    self._tell_others(stream)
                stream.vocabulary = self._parse_vocabulary(request) or stream.vocabulary
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
        others = [each.reservation for each in self._streams if each is not stream]
        return model_pb2.Load(
            others=model_pb2.Reservation(
                num_generations=min(MAX_UINT32, sum(each.num_generations for each in others)),
                reserved_tokens=min(MAX_UINT32, sum(each.reserved_tokens for each in others)),
            ),
            num_others=sum(each.num_generations > 0 for each in others),
            free_blocks=self._engine.pool.num_free,
            utilization=worker.load.utilization(worker.step_s),
            is_draining=self._is_draining,
            forward_times=_forward_times(worker.times.points if worker.times.is_recent else []),
        )

    def _tell_others(self, stream: Stream) -> None:
        for each in self._streams:
            if each is not stream:
                each.has_news.set()

    def _parse_vocabulary(self, request: model_pb2.SessionRequest) -> SharedVocabulary | None:
        """Returns None if the message has none. Raises InvalidArgument."""
        if not request.HasField("vocabulary"):
            return None
        takes_one = all(kind.takes_vocabulary for kind in self._kinds.values())
        require(takes_one, "vocabulary", "set", f"left out at a {self._role} server")
        vocabulary = vocabulary_from_message(request.vocabulary)
        check_ids("draft_token_ids", request.vocabulary.draft_token_ids, self._engine.model.vocab_size)
        return vocabulary

    def _parse(self, message: Any, vocabulary: SharedVocabulary | None) -> Command:
        """Converts a command. An invalid one becomes a Refuse, which fails in the sequence's order."""
        ids = (message.command_id, message.sequence_id)
        try:
            match message.WhichOneof("command"):
                case "open":
                    uses_draft_head = message.open.uses_draft_head and self._engine.draft_head is not None
                    options = replace(_options(message.open), vocabulary=vocabulary, uses_draft_head=uses_draft_head)
                    if message.open.grammar:
                        require(vocabulary is None, "grammar", "set", "left out with a SharedVocabulary")
                        grammar = self._grammars.grammar(
                            message.open.grammar, options.cache_salt, message.open.grammar_bytes
                        )
                        options = replace(options, grammar=grammar)
                    # An id outside the vocabulary would fail the engine step that bans it, for every job.
                    vocab_size, drawn = self._engine.model.vocab_size, None
                    if vocabulary is not None:
                        vocab_size, drawn = vocabulary.target_vocab_size, vocabulary.in_target
                    check_ids("eos_token_ids", options.eos_token_ids, vocab_size)
                    options.sampling.check_token_ids(vocab_size, options.eos_token_ids, drawn)
                    _log_opened(message.sequence_id, options)
                    return Open(*ids, options)
                case "fork":
                    return Fork(*ids, message.fork.parent_sequence_id, message.fork.length)
                case "truncate":
                    return Truncate(*ids, message.truncate.length)
                case "release":
                    return self._parse_release(message)
                case None:
                    raise InvalidArgument.of_value("command", None, "set")
                case name:
                    if (kind := self._kinds.get(name)) is None:
                        raise InvalidArgument.of_value("command", name, self._allowed_commands)
                    # Before it is copied.
                    self._check_tail(len(getattr(getattr(message, name), "tail_tokens", ())))
                    return kind.parse(message)
        except PacelineError as error:
            return Refuse(*ids, error)

    def _parse_release(self, message: Any) -> Command:
        ids, tail = (message.command_id, message.sequence_id), message.release.tail_tokens
        try:
            self._check_tail(len(tail))
            check_ids("tail_tokens", tail, self._engine.model.vocab_size)
        except PacelineError:
            # The sequence is released in any case.
            return Release(*ids)
        return Release(*ids, message.release.position, list(tail))

    def _check_tail(self, num_tokens: int) -> None:
        if num_tokens > self._engine.max_model_len:
            raise OutOfRange(
                f"tail_tokens holds {num_tokens} tokens; the model's maximum is {self._engine.max_model_len}"
            )

    def _responses(self, answers: list[Answer], steps: int, load: model_pb2.Load | None) -> Iterable[Any]:
        response = model_pb2.SessionResponse(engine_steps=steps, load=load)
        size = 0
        for answer in answers:
            kind = self._kinds_by_result.get(type(answer.result))
            for part in (answer.result,) if kind is None else kind.split(answer.result):
                message = response.answers.add(command_id=answer.command_id, has_more=answer.has_more)
                if kind is None:
                    _fill(message, part, answer.cache_length)
                else:
                    kind.fill(message, part)
                size += message.ByteSize()
                if size > SPLIT_BYTES:
                    yield response
                    response, size = model_pb2.SessionResponse(engine_steps=steps), 0
        yield response


def _fill(message: model_pb2.Answer, result: PacelineError | OpenAck, cache_length: int | None) -> None:
    if isinstance(result, OpenAck):
        message.open_ack.SetInParent()
        return
    message.failure.status.CopyFrom(status_of(result))
    if cache_length is not None:
        message.failure.cache_length = cache_length


def _log_opened(sequence_id: int, options: SequenceOptions) -> None:
    fields = {"request_id": options.request_id, "sequence": sequence_id, "prompt_tokens": options.num_prompt_tokens}
    log.info("sequence opened", extra=with_fields(**fields))


def _forward_times(measured: Sequence[tuple[int, float]]) -> list[model_pb2.ForwardTime]:
    return [model_pb2.ForwardTime(num_tokens=size, microseconds=seconds * 1e6) for size, seconds in measured]


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
