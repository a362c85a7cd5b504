"""A generation's cache on a server, of which only the length is known.

    tokens[:length]   in the server's cache
    tokens[length:]   the tail (uncached tokens), sent with the next command

Prefill, catching up, replay and a migration to another server differ only in the tail's length. After a cache error the length
is corrected and the command sent again.
"""

import asyncio
import copy
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from coordinator.remote.link import Command, Link
from coordinator.remote.pending import CacheError, OnMore, OnPart, ServerLost
from coordinator.remote.placement import Placement
from coordinator.request import Request
from paceline.checks import with_known
from paceline.errors import PacelineError, Unavailable
from paceline.rpc.model_messages import open_to_message
from paceline.sampling_params import SamplingParams
from paceline.v1 import propose_pb2, verify_pb2

# Consecutive corrections of the length before a command fails.
MAX_CORRECTIONS = 8

# Completes a command that has its position and its tail.
FillPropose = Callable[[propose_pb2.Propose], None]
FillVerify = Callable[[verify_pb2.Verify], None]
# The answer to a Propose, still to come.
ComingProposal = asyncio.Future[propose_pb2.Proposal]


class RemoteSequence:
    def __init__(
        self, placement: Placement, request: Request, sampling: SamplingParams | None = None,
        uses_draft_head: bool = False,
    ) -> None:  # fmt: skip
        """`placement`: shared by the sequence's forks."""
        self._placement = placement
        # The server that has it, or had it.
        self._link: Link = placement.link
        drawn = sampling or request.sampling
        self._open = open_to_message(
            drawn if request.noise_seed is None else with_known(drawn, seed=request.noise_seed), len(request.prompt), _ending_ids(request), request.cache_salt, request.request_id,
            request.traceparent, request.grammar_text, 0 if request.grammar is None else request.grammar.num_bytes,
            uses_draft_head,
        )  # fmt: skip
        self._sequence_id = 0
        self._epoch = 0
        self._length = 0
        # Whether the server still has tokens after these: they are truncated with the next command.
        self._is_longer = False
        # The answers to rounds that the server goes on with by itself, and what the first of them feeds: the newest token's
        # position, that token and drafts. How many more may come.
        self._coming: deque[asyncio.Future[Any]] = deque()
        self._coming_from: tuple[int, list[int]] = 0, []
        self._num_to_come = 0

    @property
    def length(self) -> int:
        """Returns the cached tokens; 0 after a reconnect."""
        return self._length if self._is_open else 0

    async def propose(self, tokens: list[int], fill: FillPropose) -> propose_pb2.Proposal:
        """Sends one Propose with the tail and returns its answer.

        Raises Unavailable if the link breaks, and the server's errors.
        """
        proposal: propose_pb2.Proposal = await self._feed("propose", tokens, fill)
        self._length += proposal.num_fed_drafts
        return proposal

    @property
    def is_free(self) -> bool:
        """Returns whether the server goes on with rounds by itself."""
        return bool(self._coming)

    async def verify(
        self, tokens: list[int], drafts: Sequence[int], fill: FillVerify, on_part: OnPart | None = None,
        num_more_rounds: int = 0, may_come_late: bool = False, stops: bool = False,
    ) -> tuple[Sequence[int], verify_pb2.VerifyResult]:  # fmt: skip
        """Sends one Verify with the tail and `drafts`, and returns the drafts that were checked, and its answer.

        Sends none for a round that the server goes on with.

        on_part: gets parts that precede the answer, all of them again after each `fill`.
        num_more_rounds: that the server may go on with behind it, if it is sent.
        may_come_late: whether `drafts` need not interrupt what the server goes on with, and may be checked in a later round.
        stops: whether the server is to wait for the round after that.

        Raises Unavailable if the link breaks, the server's errors, and FatalRequest if servers die of the sequence.
        """

        def fill_with_drafts(verify: verify_pb2.Verify) -> None:
            verify.draft_tokens.extend(drafts)
            verify.num_more_rounds = self._num_to_come = num_more_rounds
            fill(verify)

        if self._coming and not self._is_open:
            self._on_lost_coming()
        answer: verify_pb2.VerifyResult | None = None
        expected = () if may_come_late else drafts
        if self._coming and self._coming_from == (len(tokens) - 1, [tokens[-1], *expected]):
            if stops or len(drafts) > len(expected):
                fill_suggest = partial(_fill_suggest, position=len(tokens), drafts=drafts, is_last=stops)
                self._link.send(self._sequence_id, fill_suggest)
            answer = await self._come(tokens)
        if answer is not None:
            drafts = answer.suggested_tokens or expected
        else:
            on_more = self._expect if num_more_rounds else None
            answer = await self._feed("verify", tokens, fill_with_drafts, on_part, on_more)
        self._length += len(drafts)
        if self._coming and len(answer.tokens) == len(drafts) + 1:
            pairs = enumerate(zip(drafts, answer.tokens, strict=False))
            num_accepted = next((at for at, (draft, token) in pairs if draft != token), len(drafts))
            following = [answer.tokens[num_accepted], *answer.next_drafts.tokens]
            self._coming_from = len(tokens) + num_accepted, following
        return drafts, answer

    def start(self, tail: list[int], fill: FillPropose) -> ComingProposal | None:
        """Sends one Propose with `tail` after the cached tokens. Returns its answer to come, None without such tokens.

        The next call must be `adopt`, `drop` or `release`.
        """
        if not self.length:
            return None
        self._send_truncate()
        filled = partial(_fill_job, name="propose", position=self._length, tail=tail, fill=fill)
        return self._link.request(self._sequence_id, "propose", filled)

    def start_next(self, next_propose: verify_pb2.NextPropose, fill: FillPropose) -> ComingProposal | None:
        """As `start`, for a Propose that the target gives to this server after a round, and that feeds what is missing."""
        if not self._is_open:
            return None
        self._send_truncate()
        next_propose.session_id, next_propose.sequence_id = self._link.session_id, self._sequence_id
        next_propose.cache_length = self._length
        fill(next_propose.propose)
        next_propose.command_id, coming = self._link.expect("propose")
        return coming

    def adopt(self, num_fed: int) -> None:
        """Counts the tokens that a started command fed: its tail, and drafts."""
        self._length += num_fed

    def drop(self, length: int) -> None:
        """Takes a started command back, whether or not it has run, and keeps at most `length` tokens."""
        self._correct(min(length, self._length))

    def truncate(self, length: int) -> None:
        """Keeps at most `length` tokens. The server hears of it with the next command: most rounds end with one."""
        if length < self._length:
            self._length, self._is_longer = length, True

    def fork(self, length: int) -> "RemoteSequence":
        """Returns a sequence that shares the first `length` tokens. Does not wait: after a failure it sends a longer tail."""
        forked = copy.copy(self)
        forked._epoch, forked._length, forked._is_longer, forked._coming = 0, 0, False, deque()
        if min(length, self.length) > 0:
            self._send_truncate()
            forked._ensure_open()
            forked._length = min(length, self.length)
            self._link.send(forked._sequence_id, lambda command: _fill_fork(command, self._sequence_id, forked.length))
        return forked

    def release(self, continued: Sequence[int] = ()) -> None:
        """Frees the server's blocks and cancels commands.

        continued: a text that requests to come are likely to continue; the server first reads what it lacks of it.
        """
        self._leave(continued)
        self._epoch, self._length, self._is_longer = 0, 0, False

    @property
    def _is_open(self) -> bool:
        return self._link is self._placement.link and self._is_held

    @property
    def _is_held(self) -> bool:
        """Whether the server that had it has it."""
        return self._epoch != 0 and self._epoch == self._link.epoch and self._link.is_up

    def _expect(self, coming: asyncio.Future[Any]) -> None:
        """Raises Unavailable if the server goes on with more rounds than it was told."""
        if self._num_to_come == 0:
            raise Unavailable("the server went on with more rounds than it was to go on with")
        self._num_to_come -= 1
        self._coming.append(coming)

    async def _come(self, tokens: list[int]) -> verify_pb2.VerifyResult | None:
        """Returns the answer to the round that the server goes on with; None if that was not to be."""
        # The server may be ahead until the answer has come.
        self._is_longer = True
        try:
            answer: verify_pb2.VerifyResult = await self._answer(self._coming.popleft())
        except CacheError:
            return None
        self._length = self._placement.num_fed = len(tokens)
        self._is_longer = False
        return answer

    def _on_lost_coming(self) -> None:
        """Gives up what a server that is gone went on with. Raises FatalRequest if servers die of the sequence."""
        errors = [each.exception() for each in self._coming if each.done() and not each.cancelled()]
        self._leave_coming()
        for error in errors:
            if isinstance(error, ServerLost):
                self._placement.on_lost(error)

    def _leave_coming(self) -> None:
        """Gives up what the server goes on with: it has tokens that nobody waits for."""
        while self._coming:
            coming = self._coming.popleft()
            if not coming.cancel():
                # Retrieved, so that it is not reported.
                coming.exception()
            self._is_longer = True

    async def _feed(
        self, name: str, tokens: list[int], fill: Callable[[Any], None], on_part: OnPart | None = None,
        on_more: OnMore | None = None,
    ) -> Any:  # fmt: skip
        for _ in range(MAX_CORRECTIONS):
            self._ensure_open()
            self._send_truncate()
            position = self._length if self._is_open else 0
            tail = tokens[position:]
            filled = partial(_fill_job, name=name, position=position, tail=tail, fill=fill)
            try:
                answer = await self._answer(self._link.request(self._sequence_id, name, filled, on_part, on_more))
            except CacheError as error:
                last_error = error
                continue
            self._length = self._placement.num_fed = position + len(tail)
            return answer
        raise Unavailable(f"the {self._link.role} server's cache stayed inconsistent: {last_error}")

    async def _answer(self, coming: asyncio.Future[Any]) -> Any:
        """Waits for an answer. After an error the length is the server's, and the sequence can be sent another command."""
        try:
            return await coming
        except PacelineError as error:
            # Preempted, or an earlier command failed; else the cache is unchanged. The server refuses commands until a Truncate.
            self._correct(min(error.cache_length, self.length) if isinstance(error, CacheError) else self.length)
            raise
        except asyncio.CancelledError:
            self.release()
            raise

    def _leave(self, continued: Sequence[int] = ()) -> None:
        self._leave_coming()
        if self._is_held:
            # Undecided drafts must not be left to other requests.
            self._send_truncate()
            fill_release = partial(_fill_release, position=self._length, tail=continued[self._length :])
            self._link.send(self._sequence_id, fill_release)

    def _ensure_open(self) -> None:
        if self._is_open:
            return
        self._leave()
        self._link = self._placement.link
        self._sequence_id = self._link.new_sequence_id()
        self._epoch, self._length, self._is_longer = self._link.epoch, 0, False
        # Not awaited: if it fails, so does the next command.
        self._link.send(self._sequence_id, lambda command: command.open.CopyFrom(self._open))

    def _correct(self, length: int) -> None:
        self._length, self._is_longer = length, True
        self._send_truncate()

    def _send_truncate(self) -> None:
        self._leave_coming()
        if self._is_longer and self._is_held:
            self._link.send(self._sequence_id, lambda command: _fill_truncate(command, self._length))
        self._is_longer = False


def _ending_ids(request: Request) -> tuple[int, ...]:
    return () if request.sampling.ignore_eos else request.eos_token_ids


def _fill_job(command: Command, name: str, position: int, tail: list[int], fill: Callable[[Any], None]) -> None:
    message = getattr(command, name)
    message.position = position
    message.tail_tokens.extend(tail)
    fill(message)


def _fill_release(command: Command, position: int, tail: Sequence[int]) -> None:
    command.release.SetInParent()
    if tail:
        command.release.position = position
        command.release.tail_tokens.extend(tail)


def _fill_truncate(command: Command, length: int) -> None:
    command.truncate.SetInParent()
    command.truncate.length = length


def _fill_suggest(command: Command, position: int, drafts: Sequence[int], is_last: bool) -> None:
    command.suggest.position = position
    command.suggest.tokens.extend(drafts)
    command.suggest.is_last = is_last


def _fill_fork(command: Command, parent_id: int, length: int) -> None:
    command.fork.parent_sequence_id = parent_id
    command.fork.length = length
