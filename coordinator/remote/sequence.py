"""A generation's cache on a server, of which only the length is known.

    tokens[:length]   in the server's cache
    tokens[length:]   the tail (uncached tokens), sent with the next command

Prefill, catching up, replay and a move to another server differ only in the tail's length. After a cache error the length
is corrected and the command sent again.
"""

import asyncio
import copy
from collections.abc import Callable
from functools import partial
from typing import Generic, Protocol, TypeVar

from coordinator.context import Request
from coordinator.remote.link import Command, Link
from coordinator.remote.pending import Answer, CacheError, OnPart
from coordinator.remote.place import Place
from paceline.errors import PacelineError, Unavailable
from paceline.rpc.messages import open_to_message
from paceline.sampling import SamplingParams
from paceline.v1 import draft_pb2, target_pb2

# Consecutive corrections of the length before a command fails.
MAX_CORRECTIONS = 8

SomeCommand = TypeVar("SomeCommand", contravariant=True)


class Fill(Protocol[SomeCommand]):
    def __call__(self, command: SomeCommand, position: int, tail: list[int]) -> None: ...


class RemoteSequence(Generic[Command, Answer]):
    def __init__(self, place: Place[Command, Answer], request: Request, sampling: SamplingParams | None = None) -> None:
        """`place`: shared by the sequence's forks."""
        self._place = place
        # The server that has it, or had it.
        self._link: Link[Command, Answer] = place.link
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
                answer = await self._link.request(self._sequence_id, filled, on_part)
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
            self._place.num_fed = position + len(tail)
            self._length = self._place.num_fed + count_drafts(answer)
            return answer
        raise Unavailable(f"the {self._link.kind.name} server's cache stayed inconsistent: {last_error}")

    def start(self, tail: list[int], fill: Fill[Command]) -> asyncio.Future[Answer] | None:
        """Sends one Propose or Verify with `tail` after the cached tokens. Returns its answer to come, None without such tokens.

        The next call must be `adopt`, `drop` or `release`.
        """
        if not self.length:
            return None
        return self._link.request(self._sequence_id, partial(fill, position=self._length, tail=tail))

    def adopt(self, num_fed: int) -> None:
        """Counts the tokens that a started command fed: its tail, and drafts."""
        self._length += num_fed

    def drop(self, length: int) -> None:
        """Takes a started command back, whether or not it has run, and keeps at most `length` tokens."""
        self._correct(min(length, self._length))

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
            self._link.send(forked._sequence_id, lambda command: _fill_fork(command, self._sequence_id, forked.length))
        return forked

    def release(self) -> None:
        """Frees the server's blocks and cancels commands."""
        self._leave()
        self._epoch, self._length = 0, 0

    @property
    def _is_open(self) -> bool:
        return self._link is self._place.link and self._is_held

    @property
    def _is_held(self) -> bool:
        """Whether the server that had it has it."""
        return self._epoch != 0 and self._epoch == self._link.epoch and self._link.is_up

    def _leave(self) -> None:
        if self._is_held:
            self._link.send(self._sequence_id, lambda command: command.release.SetInParent())

    def _ensure_open(self) -> None:
        if self._is_open:
            return
        self._leave()
        self._link = self._place.link
        self._sequence_id = self._link.new_sequence_id()
        self._epoch, self._length = self._link.epoch, 0
        # Not awaited: if it fails, so does the next command.
        self._link.send(self._sequence_id, lambda command: command.open.CopyFrom(self._open))

    def _correct(self, length: int) -> None:
        if self._is_open:
            self._link.send(self._sequence_id, lambda command: _fill_truncate(command, length))
        self._length = length


def _ending_ids(request: Request) -> tuple[int, ...]:
    return () if request.sampling.ignore_eos else request.eos_token_ids


def _fill_truncate(command: target_pb2.TargetCommand | draft_pb2.DraftCommand, length: int) -> None:
    command.truncate.SetInParent()
    command.truncate.length = length


def _fill_fork(command: target_pb2.TargetCommand | draft_pb2.DraftCommand, parent_id: int, length: int) -> None:
    command.fork.parent_sequence_id = parent_id
    command.fork.length = length
