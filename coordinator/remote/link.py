"""One ordered stream to each server: coalesced sending, answers by command id, reconnecting.

Each connection has a new epoch. Sequences of an older epoch are lost; their owners reopen and replay them.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import grpc.aio

from coordinator.remote.load import UNKNOWN_TIMES, ForwardTimes, ServerLoad
from coordinator.remote.pending import Answer, OnPart, Pending
from coordinator.vocabularies import Translation
from paceline.errors import ConfigError, OutOfRange, PacelineError, Unavailable
from paceline.rpc.channel import MAX_COMMAND_BYTES, MAX_COMMANDS, NO_TLS, SPLIT_BYTES, open_channel
from paceline.rpc.messages import PROTOCOL_VERSION, vocabulary_to_message
from paceline.rpc.tls import Tls
from paceline.v1 import draft_pb2, draft_pb2_grpc, model_pb2, target_pb2, target_pb2_grpc

log = logging.getLogger(__name__)

FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 2.0
# Servers send something every second. After this long in silence a server counts as gone.
STALL_S = 10.0
# After this long in silence no drafts are requested, and metrics show the server as down.
SILENT_S = 2.0
DESCRIBE_S = 10.0
# Some have 30 MB.
TOKENIZER_S = 60.0

Card = model_pb2.ModelCard
# A server's command and its answer.
TargetCommand = target_pb2.TargetCommand
TargetAnswer = target_pb2.Verdict
DraftCommand = draft_pb2.DraftCommand
DraftAnswer = draft_pb2.Proposal
Command = TypeVar("Command", bound=target_pb2.TargetCommand | draft_pb2.DraftCommand)
# Returns the translation into a server's tokens, None if they are the target's, by its card and stub. Raises ConfigError.
Translate = Callable[[Card, Any], Awaitable[Translation | None]]


@dataclass(frozen=True, slots=True)
class LinkKind(Generic[Command, Answer]):
    name: str
    # grpc generates no types for stubs.
    make_stub: Callable[[grpc.aio.Channel], Any]
    request_class: type[target_pb2.TargetRequest] | type[draft_pb2.DraftRequest]


TARGET: LinkKind[target_pb2.TargetCommand, target_pb2.Verdict] = LinkKind(
    "target", target_pb2_grpc.TargetStub, target_pb2.TargetRequest
)
DRAFT: LinkKind[draft_pb2.DraftCommand, draft_pb2.Proposal] = LinkKind(
    "draft", draft_pb2_grpc.DraftStub, draft_pb2.DraftRequest
)


class Link(Generic[Command, Answer]):
    """The connection to one server. Commands are sent in order."""

    def __init__(
        self,
        kind: LinkKind[Command, Answer],
        address: str,
        check_card: Callable[[model_pb2.ModelCard], None],
        tls: Tls = NO_TLS,
        on_change: Callable[[], None] = lambda: None,
        translate: Translate | None = None,
    ) -> None:
        """`check_card` raises ConfigError for an unsuitable server. `tls` files are read at each connection.

        `on_change` is called when the server has come up, was refused or said how it is doing.
        """
        self.kind = kind
        self.address = address
        self._tls = tls
        self.card: model_pb2.ModelCard | None = None
        self.forward_times = UNKNOWN_TIMES
        # What the server last said of itself.
        self.load = ServerLoad()
        self._demand = (0, 0)
        self.device_ids = frozenset[str]()
        # The server's instance id: it changes with every start.
        self.process = ""
        self.epoch = 0
        self._check_card = check_card
        self._on_change = on_change
        self._translate = translate
        # Into the tokens of a draft model with another tokenizer.
        self.translation: Translation | None = None
        # An attribute for speed: read several times per round.
        self.is_up = False
        # Whether its last card was unsuitable.
        self.is_refused = False
        # Set while a caller waits for the server; shortens the back-off.
        self._is_wanted = asyncio.Event()
        self._last_error = "not reached yet"
        self._next_id = 0
        self._next_sequence_id = 0
        self._pending = Pending[Answer]()
        # Messages to write next; of the newest its commands and its size.
        self._unsent: list[target_pb2.TargetRequest | draft_pb2.DraftRequest] = []
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
        self._task = asyncio.create_task(self._run(), name=f"link to {self.kind.name}")

    async def stop(self) -> None:
        """Ends the connection. Commands without an answer fail."""
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
        return self.card.block_size if self.card is not None else 1

    @property
    def num_state_tokens(self) -> int:
        """Returns the cache's tokens per recurrent state; 0 if the model has none, or its card was never seen."""
        if self.card is None or self.card.num_states == 0:
            return 0
        return -(-self.card.total_blocks * self.card.block_size // self.card.num_states)

    @property
    def num_cache_tokens(self) -> int:
        """Returns how many tokens of its cache this client may use: an equal share at least, and what others leave.

        0 while nothing is known of it.
        """
        if self.card is None:
            return 0
        num_tokens = self.card.total_blocks * self.card.block_size
        return max(num_tokens - self.load.num_other_tokens, num_tokens // (1 + self.load.num_others))

    @property
    def demand(self) -> tuple[int, int]:
        """Returns the number of this client's generations and the tokens they need; the server tells its other clients."""
        return self._demand

    @demand.setter
    def demand(self, demand: tuple[int, int]) -> None:
        self._demand = demand
        self._has_unsent.set()

    def may_share_device(self, other: "Link[Any, Any]") -> bool:
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
            f"the {self.kind.name} server at {self.address} is not available (away for {self.away_s:.0f} s): "
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
                request = self.kind.request_class()
                self._unsent.append(request)
                self._newest, self._newest_bytes = request.commands, 0
            # Filled in place to avoid a copy.
            command = self._newest.add(command_id=self._next_id, sequence_id=sequence_id)
            fill(command)
            if (size := command.ByteSize()) > MAX_COMMAND_BYTES:
                del self._newest[-1]
                raise OutOfRange(
                    f"the command has {size} bytes; the {self.kind.name} server accepts at most {MAX_COMMAND_BYTES}"
                )
            self._newest_bytes += size
            self._has_unsent.set()
        return self._next_id

    def request(
        self, sequence_id: int, fill: Callable[[Command], None], on_part: OnPart | None = None
    ) -> asyncio.Future[Answer]:
        """Sends a command and returns its answer to come. Parts that precede the answer go to `on_part`.

        Raises what `send` raises, and Unavailable if the link is down. The answer may be the server's error, or Unavailable
        if the link breaks.
        """
        if not self.is_up:
            raise Unavailable(f"the {self.kind.name} server at {self.address} is not available: {self._last_error}")
        return self._pending.expect(self.send(sequence_id, fill), on_part)

    async def _run(self) -> None:
        backoff_s = FIRST_BACKOFF_S
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
                log.exception("the link to the %s server at %s failed", self.kind.name, self.address)
                self._last_error = f"{type(error).__name__}: {error}"
            if self.is_up:
                # A server that fails right after connecting keeps its back-off.
                if time.monotonic() - self._came_up_s > MAX_BACKOFF_S:
                    backoff_s = FIRST_BACKOFF_S
                log.warning("lost the %s server at %s: %s", self.kind.name, self.address, self._last_error)
            self._go_down()
            await self._back_off(backoff_s)
            backoff_s = min(MAX_BACKOFF_S, backoff_s * 2)

    async def _back_off(self, backoff_s: float) -> None:
        await asyncio.sleep(FIRST_BACKOFF_S)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._is_wanted.wait(), backoff_s - FIRST_BACKOFF_S)

    async def _serve(self, channel: grpc.aio.Channel) -> None:
        stub = self.kind.make_stub(channel)
        card = _decoded(await stub.Describe(model_pb2.DescribeModelRequest(), timeout=DESCRIBE_S))
        self._check_version(card)
        self._check_card(card)
        translation = None if self._translate is None else await self._translate(card, stub)
        call = stub.Session()
        if (first := _decoded(await call.read())) is grpc.aio.EOF:
            raise Unavailable("the server closed the session at once")
        if first.hello.instance_id != card.instance_id:
            raise Unavailable("the server was started again while the coordinator connected")
        if translation is not None:
            await call.write(draft_pb2.DraftRequest(vocabulary=vocabulary_to_message(translation.shared)))
        self.card, self.translation = card, translation
        self.forward_times = ForwardTimes([(at.num_tokens, at.microseconds / 1e6) for at in card.forward_times])
        self.load = ServerLoad(num_free_blocks=card.free_blocks)
        self.device_ids = frozenset(card.device_ids)
        self.process = card.instance_id
        self.epoch += 1
        self.is_up = True
        self._came_up_s = self._heard_s = time.monotonic()
        self.is_refused = False
        self._on_change()
        log.info("%s server at %s is up: %s (%s)", self.kind.name, self.address, card.name, card.dtype)
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

    def _learn_load(self, message: model_pb2.Load) -> None:
        before, others = self.load, message.others
        self.load = ServerLoad(
            message.num_others, others.num_generations, others.reserved_tokens, message.free_blocks, message.busy,
            message.slowdown, message.is_draining,
        )  # fmt: skip
        if self.load.is_draining and not before.is_draining:
            log.info("the %s server at %s is about to end", self.kind.name, self.address)
        self._on_change()

    async def _write(self, call: Any) -> None:
        said = (0, 0)
        try:
            while True:
                # Commands of this event loop iteration, or added during the last write, share messages.
                requests, self._unsent = self._unsent, []
                self._has_unsent.clear()
                if self.demand != said and not requests:
                    requests = [self.kind.request_class()]
                for request in requests:
                    if self.demand != said:
                        said = self.demand
                        request.demand.num_generations, request.demand.reserved_tokens = said
                    await call.write(request)
                await self._has_unsent.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # Reported by the reader.
            return
        except Exception as error:
            log.exception("sending to the %s server at %s failed", self.kind.name, self.address)
            self._last_error = f"{type(error).__name__}: {error}"
            call.cancel()

    async def _watchdog(self, call: Any) -> None:
        """Cancels the call when the server is silent."""
        while True:
            await asyncio.sleep(STALL_S / 10)
            if time.monotonic() - self._heard_s > STALL_S:
                self._last_error = f"no message for {STALL_S:g} s"
                call.cancel()

    def _check_version(self, card: model_pb2.ModelCard) -> None:
        if card.protocol_version != PROTOCOL_VERSION:
            raise ConfigError(
                f"the {self.kind.name} server at {self.address} speaks version {card.protocol_version} of the protocol; "
                f"this coordinator speaks version {PROTOCOL_VERSION}"
            )

    def _go_down(self) -> None:
        if self.is_up:
            self._went_down_s = time.monotonic()
        self.is_up = False
        self.channel = None
        self._unsent.clear()
        self._has_unsent.clear()
        self._pending.fail(f"lost the {self.kind.name} server at {self.address}: {self._last_error}")


async def read_tokenizer(stub: Any) -> dict[str, bytes]:
    """Returns the content of a model server's tokenizer files by name."""
    files: dict[str, bytes] = {}
    async for piece in stub.Tokenizer(model_pb2.TokenizerRequest(), timeout=TOKENIZER_S):
        files[piece.file_name] = files.get(piece.file_name, b"") + piece.data
    return files


def _decoded(message: Any) -> Any:
    """Raises Unavailable for None, grpc's result for malformed bytes."""
    if message is None:
        raise Unavailable("the server sent a message that is not valid protobuf of the expected type")
    return message
