"""A draft server whose proposals do not fit together costs drafts and no generation.

The server is a fake, because a real one never sends such proposals.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import grpc
import numpy as np
import pytest

from coordinator.context import Context
from coordinator.decoding import generate
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.remote_drafter import RemoteDrafter
from coordinator.policy.policy import FixedPolicy
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Pool
from coordinator.remote.target import RemoteTarget
from coordinator.stats import GenerationStats
from paceline.rpc.address_source import AddressSource
from paceline.speculation_params import Drafter, EntropyAdaptive, SpeculationParams
from paceline.v1 import model_pb2, propose_pb2
from tests.coordinator.contexts import decide, make_context
from tests.coordinator.fake_server import FakeServer, serving

BY_ENTROPY = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=EntropyAdaptive())


class FakeDraft(FakeServer):
    """Fills every proposal in the same way."""

    def __init__(self, fill: Callable[[Any], None]) -> None:
        super().__init__("draft", max_model_len=512, vocab_size=512, block_size=16)
        self._fill = fill
        # What was asked for, and all commands.
        self.asked: list[Any] = []
        self.commands: list[Any] = []

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        yield model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake"))
        async for request in requests:
            for command in request.commands:
                self.commands.append(command)
                if command.WhichOneof("command") == "propose":
                    self.asked.append(command.propose)
                    response = model_pb2.SessionResponse()
                    self._fill(response.answers.add(command_id=command.command_id).proposal)
                    yield response


@contextlib.asynccontextmanager
async def linked(fake: FakeDraft, folder: Path) -> AsyncIterator[Pool]:
    async with serving(fake, f"unix:{folder}/draft.sock") as address:
        pool = Pool("draft", AddressSource("draft", address), lambda address, model_info: None)
        try:
            await pool.start()
            await pool.wait_up(20)
            yield pool
        finally:
            await pool.stop()


def placement(pool: Pool) -> Placement:
    return Placement(pool, make_context([1]).request, [])


def fill_with(**fields: Any) -> Callable[[Any], None]:
    return lambda proposal: proposal.MergeFrom(propose_pb2.Proposal(**fields))


MISFITS = {
    "a part of a float": fill_with(tokens=[1], entropy_emas=b"12345"),
    "a smoothed entropy without its entropy": fill_with(tokens=[1], entropy_emas=bytes(4)),
    "an entropy below 0": fill_with(tokens=[1], entropies=b"\0\0\x80\xbf", entropy_emas=bytes(4)),
    "a smoothed entropy that is no number": fill_with(tokens=[1], entropies=bytes(4), entropy_emas=b"\0\0\xc0\x7f"),
    "a smoothed entropy above 1": fill_with(tokens=[1], entropies=bytes(4), entropy_emas=b"\0\0\0\x40"),
    "supports without probabilities": fill_with(tokens=[1], support_sizes=[2], support_token_ids=[1, 2]),
    "fewer ids than sizes say": fill_with(
        tokens=[1, 2], support_sizes=[2, 2], support_token_ids=[1, 2], support_probs=bytes(16)
    ),
    "supports of other drafts": fill_with(
        tokens=[1, 2], support_sizes=[2], support_token_ids=[1, 2], support_probs=bytes(8)
    ),
    "an empty support": fill_with(
        tokens=[1, 2], support_sizes=[0, 2], support_token_ids=[1, 2], support_probs=bytes(8)
    ),
    "an id that is none": fill_with(tokens=[1], support_sizes=[2], support_token_ids=[1, 512], support_probs=bytes(8)),
    "a draft outside of its support": fill_with(
        tokens=[1, 2], support_sizes=[2, 2], support_token_ids=[1, 2, 1, 3], support_probs=bytes(16)
    ),
    "more drafts than asked for": fill_with(tokens=[1] * 9),
    "a token that is none": fill_with(tokens=[1, 512]),
    "a token that the target does not know": fill_with(tokens=[1, 400]),
}


@pytest.mark.parametrize("name", MISFITS)
async def test_a_misfit_proposal_is_no_proposal_and_drafting_pauses(name: str, tmp_path: Path) -> None:
    async with linked(FakeDraft(MISFITS[name]), tmp_path) as pool:
        context = make_context([3, 14, 15])
        drafter = RemoteDrafter(placement(pool), replace(context.request, speculation=BY_ENTROPY), DraftDeadline())
        proposal = await drafter.propose(context, 4)
        assert len(proposal) == 0
        assert drafter.absence(context)


async def test_a_proposal_that_fits_is_taken(tmp_path: Path) -> None:
    async with linked(FakeDraft(fill_with(tokens=[1, 2, 3, 4], num_fed_drafts=3)), tmp_path) as pool:
        context = make_context([3, 14, 15])
        here = placement(pool)
        drafter = RemoteDrafter(here, context.request, DraftDeadline())
        assert (await drafter.propose(context, 4)).tokens == [1, 2, 3, 4]
        assert not drafter.absence(context)
        # Without the drafts, which may be wrong.
        assert here.num_fed == 3


async def test_entropies_are_those_of_the_rule_that_was_asked_for(tmp_path: Path) -> None:
    halves = np.array([0.5, 0.25], dtype="<f4").tobytes()
    fake = FakeDraft(fill_with(tokens=[1, 2], entropies=halves, entropy_emas=halves))
    async with linked(fake, tmp_path) as pool:
        context = make_context([3, 14, 15])
        request = replace(context.request, speculation=BY_ENTROPY)
        asked = await RemoteDrafter(placement(pool), request, DraftDeadline()).propose(context, 4)
        assert (asked.report.entropies, asked.report.smoothed_entropies) == ([0.5, 0.25], [0.5, 0.25])
        assert asked.report.allowed_draft_tokens == [4, 6]
        unasked = await RemoteDrafter(placement(pool), context.request, DraftDeadline()).propose(context, 4)
        assert (unasked.report.entropies, unasked.report.smoothed_entropies, unasked.report.allowed_draft_tokens) == (
            [],
            [],
            [],
        )


async def test_a_silent_server_is_asked_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt would cost a generation a whole deadline."""
    asked: list[Any] = []
    async with linked(FakeDraft(asked.append), tmp_path) as pool:
        context = make_context([3, 14, 15])
        drafter = RemoteDrafter(placement(pool), context.request, DraftDeadline())
        assert not drafter.absence(context)
        # The fake sends no heartbeats, so nothing has been heard since the link came up.
        monkeypatch.setattr("coordinator.remote.link.SILENT_S", 0.0)
        assert drafter.absence(context)
        assert pool.is_up
        assert not asked


class WaitedFor(DraftDeadline):
    """Keeps for how many tokens each wait was."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def seconds(self, num_tokens: int) -> float:
        self.asked.append(num_tokens)
        return super().seconds(num_tokens)


async def test_a_draft_that_needs_the_context_read_anew_is_waited_for_so_long(tmp_path: Path) -> None:
    fits = fill_with(tokens=[1, 2, 3, 4], num_fed_drafts=3)

    class Forgetful(FakeDraft):
        """Loses its cache before the second proposal, and its stream before the fourth."""

        async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for response in super().Session(requests, context):
                if len(self.asked) == 2:
                    (answer,) = response.answers
                    answer.failure.status.code, answer.failure.cache_length = grpc.StatusCode.OUT_OF_RANGE.value[0], 0
                yield response
                if len(self.asked) == 3 and response.answers:
                    return

    async with linked(Forgetful(fits), tmp_path) as pool:
        context, deadline = make_context(list(range(40))), WaitedFor()
        drafter = RemoteDrafter(placement(pool), context.request, deadline)
        assert (await drafter.propose(context, 4)).report.num_tail_tokens == 40
        drafter.truncate(39)
        # One token, and then all of them.
        assert (await drafter.propose(context, 4)).report.num_tail_tokens == 40
        drafter.truncate(39)
        assert [each for each in deadline.asked if each] == [44, 5, 44]
        while pool.is_up:
            await asyncio.sleep(0.01)
        await pool.wait_up(20)
        assert drafter.num_cached(context) == 0
        assert (await drafter.propose(context, 4)).report.num_tail_tokens == 40
        assert deadline.asked[-1] == 44


async def test_a_round_that_is_cut_off_leaves_no_draft_behind(tmp_path: Path) -> None:
    """What a server keeps of a released sequence, other requests may find."""

    class Stuck:
        """A target that is asked and never answers."""

        def __init__(self) -> None:
            self.is_asked = asyncio.Event()

        async def verify(self, context: Any, proposal: Any) -> Any:
            self.is_asked.set()
            await asyncio.Event().wait()

        def release(self, continued: Any) -> None:
            pass

    fake = FakeDraft(fill_with(tokens=[1, 2, 3, 4], num_fed_drafts=3))
    async with linked(fake, tmp_path) as pool:
        context, target = make_context([3, 14, 15]), Stuck()
        decide(context, [9])
        policy = FixedPolicy(RemoteDrafter(placement(pool), context.request, DraftDeadline()), 4)
        rounds = generate(context, policy, cast(RemoteTarget, target), GenerationStats())
        running = asyncio.ensure_future(anext(rounds))
        await target.is_asked.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running
        async with asyncio.timeout(20):
            while fake.commands[-1].WhichOneof("command") != "release":
                await asyncio.sleep(0.01)
        kinds = [command.WhichOneof("command") for command in fake.commands]
        assert (kinds, fake.commands[2].truncate.length) == (["open", "propose", "truncate", "release"], 3)


async def test_a_truncate_goes_out_with_the_next_command(tmp_path: Path) -> None:
    """A message of its own would cost each round the time of two event loops."""
    fake = FakeDraft(fill_with(tokens=[1, 2, 3, 4], num_fed_drafts=3))
    async with linked(fake, tmp_path) as pool:
        context = make_context([3, 14, 15])
        decide(context, [9])
        drafter = RemoteDrafter(placement(pool), context.request, DraftDeadline())
        await drafter.propose(context, 4)
        decide(context, [1, 8])
        drafter.truncate(context.num_fed)
        assert drafter.num_cached(context) == 5
        await asyncio.sleep(0.1)
        assert [command.WhichOneof("command") for command in fake.commands] == ["open", "propose"]
        await drafter.propose(context, 4)
        assert [command.WhichOneof("command") for command in fake.commands[2:]] == ["truncate", "propose"]
        assert (fake.commands[2].truncate.length, fake.commands[3].propose.position) == (5, 5)


class Deadly(FakeDraft):
    """Ends its session at a proposal after token 366, as a server that dies does."""

    def __init__(self) -> None:
        super().__init__(fill_with(tokens=[1, 2, 3, 4], num_fed_drafts=3))
        self.num_deaths = 0

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for response in super().Session(requests, context):
            if response.answers and self.asked[-1].tail_tokens[-1] == 366:
                self.num_deaths += 1
                return
            yield response


async def wait_until_drafting(pool: Pool, drafter: RemoteDrafter, context: Context) -> None:
    """Waits for the draft server's return, and for the end of the drafter's pause."""
    async with asyncio.timeout(20):
        while drafter.absence(context) in ("draft server away", "draft server in trouble"):
            await pool.wait_up(20)
            await asyncio.sleep(0.01)


async def test_a_request_that_kills_draft_servers_goes_on_without_them(tmp_path: Path) -> None:
    fake = Deadly()
    async with linked(fake, tmp_path) as pool:
        deadly, innocent = make_context([3, 14, 366]), make_context([3, 14, 15])
        request, reasons = deadly.request, list[str]()
        # Of two samples the second one is not tried.
        for _ in range(2):
            drafter = RemoteDrafter(Placement(pool, request, []), request, DraftDeadline())
            for _ in range(3):
                await wait_until_drafting(pool, drafter, deadly)
                reasons.append((await drafter.propose(deadly, 4)).report.reason)
        assert fake.num_deaths == 2
        assert reasons == [*["draft server in trouble"] * 2, *["it may have killed draft servers"] * 4]
        other = RemoteDrafter(placement(pool), innocent.request, DraftDeadline())
        await wait_until_drafting(pool, other, innocent)
        assert (await other.propose(innocent, 4)).tokens == [1, 2, 3, 4]


async def test_a_request_that_was_drafted_for_in_between_is_drafted_for_again(tmp_path: Path) -> None:
    fake = Deadly()
    async with linked(fake, tmp_path) as pool:
        context = make_context([3, 14])
        drafter = RemoteDrafter(placement(pool), context.request, DraftDeadline())
        for _ in range(2):
            assert len(await drafter.propose(context, 4)) == 4
            decide(context, [366])
            drafter.truncate(context.num_fed)
            assert len(await drafter.propose(context, 4)) == 0
            decide(context, [15])
            await wait_until_drafting(pool, drafter, context)
        assert (fake.num_deaths, len(await drafter.propose(context, 4))) == (2, 4)


async def test_those_who_were_there_when_a_draft_server_died_are_drafted_for_one_at_a_time(tmp_path: Path) -> None:
    """The others do without, and do not wait."""
    fake = Deadly()
    async with linked(fake, tmp_path) as pool:
        contexts = [make_context([3, 14, last]) for last in (366, 15, 16)]
        drafters = [RemoteDrafter(placement(pool), each.request, DraftDeadline()) for each in contexts]
        pairs = list(zip(drafters, contexts, strict=True))
        num_drafts = list[list[int]]()
        for _ in range(2):
            for drafter, context in pairs:
                await wait_until_drafting(pool, drafter, context)
            proposals = await asyncio.gather(*(drafter.propose(context, 4) for drafter, context in pairs))
            num_drafts.append([len(each) for each in proposals])
            pairs.reverse()
        assert (num_drafts, fake.num_deaths) == ([[0, 0, 0], [4, 0, 0]], 1)
