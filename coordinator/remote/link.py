"""One ordered stream to each server: coalesced sending, answers by command id, reconnecting.

Each connection has a new epoch. Sequences of an older epoch are lost; their owners reopen and replay them.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Literal

import grpc.aio

from coordinator.remote.pending import OnMore, OnPart, Pending, ServerLost
from coordinator.remote.server_load import UNKNOWN_TIMES, ForwardTimes, ServerLoad
from coordinator.vocabulary_translation import Translation
from paceline.backoff import Backoff
from paceline.errors import ConfigError, OutOfRange, PacelineError, Unavailable
from paceline.rpc.channel import MAX_COMMAND_BYTES, MAX_COMMANDS, NO_TLS, SPLIT_BYTES, open_channel
from paceline.rpc.heartbeat import SILENT_S, STALL_S
from paceline.rpc.model_messages import PROTOCOL_VERSION, vocabulary_to_message
from paceline.rpc.tls import Tls
from paceline.v1 import model_pb2, model_pb2_grpc

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
STALL_PARTS = 10
DESCRIBE_S = 10.0
# Some have 30 MB.
TOKENIZER_S = 60.0

ModelInfo = model_pb2.ModelInfo
Command = model_pb2.Command
# Of a server, as its model info says.
Role = Literal["draft", "target"]
# The answers to commands that start jobs.
ANSWERS = {"propose": "proposal", "verify": "verify_result"}
# Returns the translation into a server's tokens, None if they are the target's, by its model info and stub. Raises ConfigError.
Translate = Callable[[ModelInfo, Any], Awaitable[Translation | None]]


def _times(measured: Iterable[model_pb2.ForwardTime]) -> ForwardTimes:
    return ForwardTimes([(at.num_tokens, at.microseconds / 1e6) for at in measured])


class Link:
    """The connection to one server. Commands are sent in order."""

    def __init__(
        self,
        role: Role,
        address: str,
        check_model_info: Callable[[model_pb2.ModelInfo], None],
        tls: Tls = NO_TLS,
        on_change: Callable[[], None] = lambda: None,
        translate: Translate | None = None,
    ) -> None:
        """`check_model_info` raises ConfigError for an unsuitable server. `tls` files are read at each connection.

        `on_change` is called when the server has come up, was refused or said how it is doing.
        """
        self.role = role
        self.address = address
        self._tls = tls
        self.model_info: model_pb2.ModelInfo | None = None
        self.forward_times = UNKNOWN_TIMES
        # Of the target's draft head; None without one.
        self.draft_head_times: ForwardTimes | None = None
        # What the server last said of itself.
        self.load = ServerLoad()
        self._reservation = (0, 0)
        self.device_ids = frozenset[str]()
        # The server's instance id: it changes with every start.
        self.process = ""
        # Of the stream, at the server.
        self.session_id = ""
        self.epoch = 0
        self._check_model_info = check_model_info
        self._on_change = on_change
        self._translate = translate
        # Into the tokens of a draft model with another tokenizer.
        self.translation: Translation | None = None
        # An attribute for speed: read several times per round.
        self.is_up = False
        # Whether its last model info was unsuitable.
        self.is_refused = False
        # Set while a caller waits for the server; shortens the back-off.
        self._is_wanted = asyncio.Event()
        self._is_stopped = False
        self._last_error = "not reached yet"
        self._next_id = 0
        self._next_sequence_id = 0
        self._pending = Pending()
        # Messages to write next; of the newest its commands and its size.
        self._unsent: list[model_pb2.SessionRequest] = []
        self._newest: Any = ()
        self._newest_bytes = 0
        self._has_unsent = asyncio.Event()
        # `time.monotonic` of the last message, and of the last changes of `is_up`.
        self._heard_s = 0.0
        self._came_up_s = 0.0
        self._went_down_s = time.monotonic()
        self._task: asyncio.Task[None] | None = None
        self.channel: grpc.aio.Channel | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"link to {self.role}")

    async def stop(self) -> None:
        """Ends the connection. Commands without an answer fail."""
        self._is_stopped = True
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._last_error = "it is no longer used"
            self._go_down()

    @property
    def away_s(self) -> float:
        """Returns 0 while the server is up."""
        return 0.0 if self.is_up else time.monotonic() - self._went_down_s

    @property
    def is_silent(self) -> bool:
        return self.is_up and time.monotonic() - self._heard_s > SILENT_S

    @property
    def num_block_tokens(self) -> int:
        """Returns the tokens in a block of its cache; 1 while nothing is known of it."""
        return self.model_info.block_size if self.model_info is not None else 1

    @property
    def num_state_tokens(self) -> int:
        """Returns the cache's tokens per recurrent state; 0 if the model has none, or its model info was never seen."""
        if self.model_info is None or self.model_info.num_states == 0:
            return 0
        return -(-self.model_info.total_blocks * self.model_info.block_size // self.model_info.num_states)

    @property
    def num_cache_tokens(self) -> int:
        """Returns how many tokens of its cache this client may use: an equal share at least, and what others leave.

        0 while nothing is known of it.
        """
        if self.model_info is None:
            return 0
        num_tokens = self.model_info.total_blocks * self.model_info.block_size
        return max(num_tokens - self.load.num_other_tokens, num_tokens // (1 + self.load.num_others))

    @property
    def reservation(self) -> tuple[int, int]:
        """Returns the number of this client's generations and the tokens they need; the server tells its other clients."""
        return self._reservation

    @reservation.setter
    def reservation(self, reservation: tuple[int, int]) -> None:
        self._reservation = reservation
        self._has_unsent.set()

    def may_share_device(self, other: "Link") -> bool:
        """Returns whether both servers run on the same GPU or core, or one did not tell where it runs."""
        ids, others = self.device_ids, other.device_ids
        return not ids or not others or not ids.isdisjoint(others)

    def want(self) -> None:
        """Tries to connect soon: somebody waits."""
        self._is_wanted.set()

    @property
    def absence(self) -> str:
        """Returns why the server is not up, for users."""
        if self.is_refused:
            return self._last_error
        return (
            f"the {self.role} server at {self.address} is not available (away for {self.away_s:.0f} s): "
            f"{self._last_error}"
        )

    def new_sequence_id(self) -> int:
        self._next_sequence_id += 1
        return self._next_sequence_id

    def send(self, sequence_id: int, fill: Callable[[Command], None]) -> int:
        """Returns the command's id. Drops it if the link is down: its sequence is lost. Raises OutOfRange if too large."""
        self._next_id += 1
        if self.is_up:
            if not self._unsent or self._newest_bytes > SPLIT_BYTES or len(self._newest) >= MAX_COMMANDS:
                request = model_pb2.SessionRequest()
                self._unsent.append(request)
                self._newest, self._newest_bytes = request.commands, 0
            # Filled in place to avoid a copy.
            command = self._newest.add(command_id=self._next_id, sequence_id=sequence_id)
            fill(command)
            if (size := command.ByteSize()) > MAX_COMMAND_BYTES:
                del self._newest[-1]
                raise OutOfRange(
                    f"the command has {size} bytes; the {self.role} server accepts at most {MAX_COMMAND_BYTES}"
                )
            self._newest_bytes += size
            self._has_unsent.set()
        return self._next_id

    def request(
        self, sequence_id: int, name: str, fill: Callable[[Command], None], on_part: OnPart | None = None,
        on_more: OnMore | None = None,
    ) -> asyncio.Future[Any]:  # fmt: skip
        """Sends a command named in ANSWERS and returns its answer to come. Parts that precede the answer go to `on_part`,
        and an answer that follows it, still to come, to `on_more`.

        Raises what `send` raises, and Unavailable if the link is down. The answer may be the server's error, or Unavailable
        if the link breaks.
        """
        if not self.is_up:
            raise Unavailable(f"the {self.role} server at {self.address} is not available: {self._last_error}")
        return self._pending.expect(self.send(sequence_id, fill), ANSWERS[name], on_part, on_more)

    def expect(self, name: str) -> tuple[int, asyncio.Future[Any]]:
        """Returns the id of a command that another server will give to this one, and its answer to come.

        Cancel it if the command is not given.
        """
        self._next_id += 1
        return self._next_id, self._pending.expect(self._next_id, ANSWERS[name], may_never_come=True)

    def has_draft(self, draft: "Link") -> bool:
        """Returns whether that draft server is in this server's process."""
        info = self.model_info
        return (
            info is not None
            and bool(info.draft_instance_id)
            and info.draft_instance_id == draft.process
            and draft.is_up
        )

    async def _run(self) -> None:
        backoff = Backoff(FIRST_BACKOFF_S, MAX_BACKOFF_S)
        while True:
            self._is_wanted.clear()
            try:
                async with open_channel(self.address, self._tls) as channel:
                    self.channel = channel
                    await self._serve(channel)
            except grpc.aio.AioRpcError as error:
                self.is_refused = False
                self._last_error = f"{error.code().name}: {error.details()}"
            except PacelineError as error:
                self._last_error = str(error)
                self.is_refused = isinstance(error, ConfigError)
                if self.is_refused:
                    log.warning("%s", error)
                    self._on_change()
            except Exception as error:
                # Without this task, requests would wait forever.
                log.exception("the link to the %s server at %s failed", self.role, self.address)
                self._last_error = f"{type(error).__name__}: {error}"
            if self.is_up:
                # A server that fails right after connecting keeps its back-off.
                if time.monotonic() - self._came_up_s > MAX_BACKOFF_S:
                    backoff.reset()
                log.warning("lost the %s server at %s: %s", self.role, self.address, self._last_error)
            self._go_down()
            await self._pause(backoff.take())

    async def _pause(self, pause_s: float) -> None:
        await asyncio.sleep(FIRST_BACKOFF_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_wanted.wait(), pause_s - FIRST_BACKOFF_S)

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        stub = model_pb2_grpc.ModelStub(channel)
        model_info = await self._describe(stub)
        self._check_model_info(model_info)
        translation = None if self._translate is None else await self._translate(model_info, stub)
        call = stub.Session()
        if (first := _decoded(await call.read())) is grpc.aio.EOF:
            raise Unavailable("the server closed the session at once")
        if first.session_info.instance_id != model_info.instance_id:
            raise Unavailable("the server was started again while the coordinator connected")
        if translation is not None:
            await call.write(model_pb2.SessionRequest(vocabulary=vocabulary_to_message(translation.shared)))
        self.model_info, self.translation = model_info, translation
        self.forward_times = _times(model_info.forward_times)
        has_head = model_info.HasField("draft_head")
        self.draft_head_times = _times(model_info.draft_head.forward_times) if has_head else None
        self.load = ServerLoad(num_free_blocks=model_info.free_blocks)
        self.device_ids = frozenset(model_info.device_ids)
        self.process = model_info.instance_id
        self.session_id = first.session_info.session_id
        self.epoch += 1
        self.is_up = True
        self._came_up_s = self._heard_s = time.monotonic()
        self.is_refused = False
        self._on_change()
        log.info("%s server at %s is up: %s (%s)", self.role, self.address, model_info.name, model_info.dtype)
        writer = asyncio.create_task(self._write(call))
        watchdog = asyncio.create_task(self._watchdog(call))
        try:
            while (response := _decoded(await call.read())) is not grpc.aio.EOF:
                self._heard_s = time.monotonic()
                if response.HasField("load"):
                    self._learn_load(response.load)
                for answer in response.answers:
                    self._pending.on_answer(answer)
            self._last_error = "the server closed the session"
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # The watchdog or the writer cancelled the call.
            raise Unavailable(self._last_error) from None
        finally:
            writer.cancel()
            watchdog.cancel()
            call.cancel()

    async def _describe(self, stub: Any) -> ModelInfo:
        """Raises ConfigError for what is no server of this protocol version and role."""
        try:
            model_info: ModelInfo = _decoded(await stub.Describe(model_pb2.DescribeModelRequest(), timeout=DESCRIBE_S))
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            raise ConfigError(
                f"what answers at {self.address} is no model server with version {PROTOCOL_VERSION} of the protocol: "
                "it speaks an older version, or is another service"
            ) from error
        if model_info.protocol_version != PROTOCOL_VERSION:
            raise ConfigError(
                f"the {self.role} server at {self.address} speaks version {model_info.protocol_version} of the protocol; "
                f"this coordinator speaks version {PROTOCOL_VERSION}"
            )
        if model_info.role != self.role:
            raise ConfigError(
                f"the server at {self.address} is a {model_info.role} server; --{self.role} takes the address of a {self.role} server"
            )
        return model_info

    def _learn_load(self, message: model_pb2.Load) -> None:
        before, others = self.load, message.others
        if message.forward_times:
            self.forward_times = _times(message.forward_times)
        self.load = ServerLoad(
            message.num_others, others.num_generations, others.reserved_tokens, message.free_blocks, message.utilization,
            self.forward_times(1) if message.forward_times else 0.0, message.is_draining,
        )  # fmt: skip
        if self.load.is_draining and not before.is_draining:
            log.info("the %s server at %s is about to end", self.role, self.address)
        self._on_change()

    async def _write(self, call: Any) -> None:
        said = (0, 0)
        try:
            while True:
                # Commands of this event loop iteration, or added during the last write, share messages.
                requests, self._unsent = self._unsent, []
                self._has_unsent.clear()
                if self.reservation != said and not requests:
                    requests = [model_pb2.SessionRequest()]
                for request in requests:
                    if self.reservation != said:
                        said = self.reservation
                        request.reservation.num_generations, request.reservation.reserved_tokens = said
                    await call.write(request)
                await self._has_unsent.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # Reported by the reader.
            return
        except Exception as error:
            log.exception("sending to the %s server at %s failed", self.role, self.address)
            self._last_error = f"{type(error).__name__}: {error}"
            call.cancel()

    async def _watchdog(self, call: Any) -> None:
        """Cancels the call when the server is silent."""
        num_silent = 0
        # In parts: a coordinator that was stopped has not listened meanwhile.
        while num_silent < STALL_PARTS:
            heard_s = self._heard_s
            await asyncio.sleep(STALL_S / STALL_PARTS)
            num_silent = num_silent + 1 if self._heard_s == heard_s else 0
        self._last_error = f"no message for {STALL_S:g} s"
        call.cancel()

    def _go_down(self) -> None:
        if self.is_up:
            self._went_down_s = time.monotonic()
        # A server that ends on purpose is not lost by what it worked on.
        is_lost = self.is_up and not self.load.is_draining and not self._is_stopped
        self.is_up = False
        self.channel = None
        self._unsent.clear()
        self._has_unsent.clear()
        kind = ServerLost if is_lost else Unavailable
        self._pending.fail(kind(f"lost the {self.role} server at {self.address}: {self._last_error}"))


async def read_tokenizer(stub: Any) -> dict[str, bytes]:
    """Returns the content of a model server's tokenizer files by name."""
    files: dict[str, bytes] = {}
    async for chunk in stub.Tokenizer(model_pb2.TokenizerRequest(), timeout=TOKENIZER_S):
        files[chunk.file_name] = files.get(chunk.file_name, b"") + chunk.data
    return files


def _decoded(message: Any) -> Any:
    """Raises Unavailable for None, grpc's result for malformed bytes."""
    if message is None:
        raise Unavailable("the server sent a message that is not valid protobuf of the expected type")
    return message
