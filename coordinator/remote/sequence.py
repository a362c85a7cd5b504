"""A generation's cache on one server, of which only the length is known.

    tokens[:length]   in the server's cache
    tokens[length:]   the tail (uncached tokens), sent with the next command

Prefill, catching up and replay differ only in the tail's length. After a cache error the length is corrected and the
command sent again.
"""

import asyncio
import copy
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from coordinator.context import Request
from coordinator.remote.link import Answer, CacheError, Command, Link, OnPart, TargetLink
from paceline.errors import PacelineError, ResourceExhausted, Unavailable
from paceline.rpc.messages import open_to_message
from paceline.sampling import SamplingParams
from paceline.v1 import draft_pb2, target_pb2

# Consecutive corrections of the length before a command fails.
MAX_CORRECTIONS = 8
FIRST_PAUSE_S = 0.02
MAX_PAUSE_S = 1.0
# Minimum wait: a server that was away for long may be back.
LAST_ATTEMPT_S = 1.0


T = TypeVar("T")
SomeCommand = TypeVar("SomeCommand", contravariant=True)


class Fill(Protocol[SomeCommand]):
    def __call__(self, command: SomeCommand, position: int, tail: list[int]) -> None: ...


class RemoteSequence(Generic[Command, Answer]):
    def __init__(self, link: Link[Command, Answer], request: Request, sampling: SamplingParams | None = None) -> None:
        self.link = link
        self._open = open_to_message(
            sampling or request.sampling, len(request.prompt), _ending_ids(request), request.cache_salt, request.request_id,
            request.traceparent, request.grammar_text,
        )  # fmt: skip
        self._sequence_id = 0
        self._epoch = 0
        self._length = 0

    @property
    def length(self) -> int:
        """Returns the cached tokens; 0 after a reconnect."""
        return self._length if self._is_open else 0

    async def feed(
        self,
        tokens: list[int],
        fill: Fill[Command],
        count_drafts: Callable[[Answer], int],
        on_part: OnPart | None = None,
    ) -> Answer:
        """Sends one Propose or Verify with the tail and returns its answer.

        count_drafts: returns how many drafts the server fed after the tail.
        on_part: gets parts that precede the answer, all of them again after each `fill`.

        Raises Unavailable if the link breaks, and the server's errors.
        """
        for _ in range(MAX_CORRECTIONS):
            self._ensure_open()
            position = self._length if self._is_open else 0
            tail = tokens[position:]
            try:
                filled = partial(fill, position=position, tail=tail)
                answer = await self.link.request(self._sequence_id, filled, on_part)
            except CacheError as error:
                # Evicted, or an earlier command failed: use the server's length.
                self._correct(min(error.cache_length, self.length))
                last_error: PacelineError = error
                continue
            except PacelineError:
                # The server refuses commands until a Truncate; the cache is unchanged.
                self._correct(self.length)
                raise
            except asyncio.CancelledError:
                self.release()
                raise
            self._length = position + len(tail) + count_drafts(answer)
            return answer
        raise Unavailable(f"the {self.link.kind.name} server's cache stayed inconsistent: {last_error}")

    def truncate(self, length: int) -> None:
        """Keeps at most `length` tokens. Does not wait: the stream is ordered."""
        if length < self._length:
            self._correct(length)

    def fork(self, length: int) -> "RemoteSequence[Command, Answer]":
        """Returns a sequence that shares the first `length` tokens. Does not wait: after a failure it sends a longer tail."""
        forked = copy.copy(self)
        forked._epoch, forked._length = 0, 0
        if min(length, self.length) > 0:
            forked._ensure_open()
            forked._length = min(length, self.length)
            self.link.send(forked._sequence_id, lambda command: _fill_fork(command, self._sequence_id, forked.length))
        return forked

    def release(self) -> None:
        """Frees the server's blocks and cancels commands."""
        if self._is_open:
            self.link.send(self._sequence_id, lambda command: command.release.SetInParent())
        self._epoch, self._length = 0, 0

    @property
    def _is_open(self) -> bool:
        return self._epoch != 0 and self._epoch == self.link.epoch and self.link.is_up

    def _ensure_open(self) -> None:
        if self._is_open:
            return
        self._sequence_id = self.link.new_sequence_id()
        self._epoch, self._length = self.link.epoch, 0
        # Not awaited: if it fails, so does the next command.
        self.link.send(self._sequence_id, lambda command: command.open.CopyFrom(self._open))

    def _correct(self, length: int) -> None:
        if self._is_open:
            self.link.send(self._sequence_id, lambda command: _fill_truncate(command, length))
        self._length = length


async def retry_until(link: TargetLink, timeout_s: float, attempt: Callable[[], Awaitable[T]]) -> T:
    """Repeats `attempt` while the server is away or has no capacity, for up to `timeout_s`.

    The time counts from when the server went away, or queued requests would wait for it one after the other. Later callers
    get one attempt.
    """
    deadline_s = time.monotonic() + timeout_s - link.away_s
    pause_s = FIRST_PAUSE_S
    while True:
        if not link.is_up:
            await link.wait_up(max(LAST_ATTEMPT_S, deadline_s - time.monotonic()))
        try:
            return await attempt()
        except (Unavailable, ResourceExhausted):
            if time.monotonic() + pause_s > deadline_s:
                raise
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, pause_s * 2)


def _ending_ids(request: Request) -> tuple[int, ...]:
    return () if request.sampling.ignore_eos else request.eos_token_ids


def _fill_truncate(command: target_pb2.TargetCommand | draft_pb2.DraftCommand, length: int) -> None:
    command.truncate.SetInParent()
    command.truncate.length = length


def _fill_fork(command: target_pb2.TargetCommand | draft_pb2.DraftCommand, parent_id: int, length: int) -> None:
    command.fork.parent_sequence_id = parent_id
    command.fork.length = length
