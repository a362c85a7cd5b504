"""When a target is asked to have its draft model go on, what a round gets of it, and what else leaves behind.

The draft server is a fake: the text is that each token is its position, and drafts are wrong where a test says so.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.acceptance import Proposal
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.drafter import Resources
from coordinator.drafters.following import FollowingDrafter
from coordinator.drafters.model import make_model
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Pool
from paceline.rpc.address_source import AddressSource
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, DraftMode, SpeculationParams
from paceline.v1 import model_pb2, verify_pb2
from tests.coordinator.contexts import decide, make_context
from tests.coordinator.drafters.test_ahead import WRONG, FakeDraft
from tests.coordinator.fake_server import serving

NUM_PROMPT_TOKENS = 4


class ColocatedFakeDraft(FakeDraft):
    """Takes commands from a test that plays the target server."""

    async def _read(self, requests: AsyncIterator[Any], responses: asyncio.Queue[Any]) -> None:
        self._responses = responses
        await super()._read(requests, responses)

    def give(self, following: verify_pb2.NextPropose, tail: list[int]) -> None:
        command = model_pb2.Command(command_id=following.command_id, propose=following.propose)
        command.propose.position = following.cache_length
        command.propose.tail_tokens.extend(tail)
        self._answering.add(asyncio.create_task(self._answer(command, self._responses)))


class Rounds:
    """One generation, whose prompt and first token are decided."""

    def __init__(self, fake: ColocatedFakeDraft, pool: Pool, is_colocated: bool = True) -> None:
        self.fake = fake
        self.context = make_context(list(range(NUM_PROMPT_TOKENS)))
        decide(self.context, [NUM_PROMPT_TOKENS])
        placement = Placement(pool, self.context.request, self.context.tokens)
        self.link = placement.link
        self.drafter = FollowingDrafter(placement, self.context.request, DraftDeadline())
        self.target: Any = SimpleNamespace(has_draft=lambda link: is_colocated and link is self.link)

    async def propose(self, num_draft_tokens: int = 3, after: tuple[int, ...] = ()) -> Proposal:
        return await self.drafter.propose(self.context, num_draft_tokens, 0.0, after)

    def verify(self, proposal: Proposal, answers: bool = True) -> verify_pb2.NextPropose | None:
        """Decides a round as the target does. Returns what was asked for, if anything was."""
        verify, begin, num_tokens = verify_pb2.Verify(), len(self.context), 0
        if proposal.ask_next is not None:
            proposal.ask_next(self.target, verify)
        for draft in proposal.tokens:
            if draft != begin + num_tokens:
                break
            num_tokens += 1
        end = begin + num_tokens + 1
        following = verify.next_propose if verify.HasField("next_propose") else None
        if following is not None and answers:
            following.cache_length = min(following.cache_length, end - 1)
            self.fake.give(following, list(range(following.cache_length, end)))
        decide(self.context, list(range(begin, end)))
        self.drafter.truncate(self.context.num_fed)
        return following

    async def commands(self) -> list[Any]:
        """Returns those since the last call."""
        await asyncio.sleep(0.05)
        commands, self.fake.commands = self.fake.commands, []
        return commands


@contextlib.asynccontextmanager
async def rounds(folder: Path, is_colocated: bool = True) -> AsyncIterator[Rounds]:
    fake = ColocatedFakeDraft()
    async with serving(fake, f"unix:{folder}/draft.sock") as address:
        pool = Pool("draft", AddressSource("draft", address), lambda address, model_info: None)
        await pool.start()
        try:
            async with asyncio.timeout(20):
                while not all(each.is_serving for each in pool.endpoints):
                    await asyncio.sleep(0.01)
            yield Rounds(fake, pool, is_colocated)
        finally:
            await pool.stop()


async def test_the_next_proposal_is_what_followed_the_round_and_no_message_asks_for_it(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        proposal = await found.propose()
        assert await found.commands() == ["open", (0, [0, 1, 2, 3, 4], 3)]
        # The second draft of the next round is wrong, and the first of the one after it.
        found.fake.wrong = {10, 11}
        for drafts in ([9, WRONG, WRONG], [WRONG, 12, 13], [12, 13, 14], [16, 17, 18]):
            following = found.verify(proposal)
            assert following is not None
            assert not following.propose.HasField("round_start")
            proposal = await found.propose()
            assert proposal.tokens == drafts
        assert await found.commands() == []


async def test_a_target_of_another_process_is_not_asked(tmp_path: Path) -> None:
    async with rounds(tmp_path, is_colocated=False) as found:
        assert found.verify(await found.propose()) is None
        assert (await found.propose()).tokens == [9, 10, 11]
        assert await found.commands() == ["open", (0, [0, 1, 2, 3, 4], 3), (7, [7, 8], 3)]


async def test_what_followed_a_round_that_was_decided_otherwise_is_dropped(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.verify(await found.propose())
        decide(found.context, [9])
        assert (await found.propose()).tokens == [10, 11, 12]
        assert (await found.commands())[2:] == [7, (7, [7, 8, 9], 3)]


async def test_after_rounds_without_the_model_no_rejected_draft_is_left(tmp_path: Path) -> None:
    """Which n-grams drafted, while it was away for a moment."""
    async with rounds(tmp_path) as found:
        found.fake.wrong = {5}
        found.verify(await found.propose())
        decide(found.context, [6, 7, 8])
        found.drafter.truncate(found.context.num_fed)
        found.fake.wrong = set()
        assert (await found.propose()).tokens == [9, 10, 11]
        assert (await found.commands())[2:] == [5, (5, [5, 6, 7, 8], 3)]


async def test_a_death_counts_for_whom_the_draft_model_worked(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        deaths: list[None] = []
        found.drafter._placement.suspicion.on_death = lambda: deaths.append(None)  # type: ignore[method-assign]
        for is_decided, num_deaths in ((False, 0), (True, 1)):
            proposal = await found.propose()
            if is_decided:
                found.verify(proposal, answers=False)
            else:
                assert proposal.ask_next is not None
                proposal.ask_next(found.target, verify_pb2.Verify())
            found.fake.end_streams()
            async with asyncio.timeout(20):
                while found.link.is_up:
                    await asyncio.sleep(0.01)
            assert (await found.propose()).tokens == []
            assert len(deaths) == num_deaths
            async with asyncio.timeout(20):
                while found.drafter.absence(found.context):
                    await asyncio.sleep(0.01)


async def test_fewer_drafts_may_be_asked_for_and_none(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.verify(await found.propose())
        proposal = await found.propose(1)
        assert proposal.tokens == [9]
        # It has drafted two more, of which one is in its cache.
        assert found.verify(proposal) is not None
        assert (await found.propose(2, after=(11, 12))).tokens == [13, 14]
        assert (await found.commands())[2:] == [10, (10, [10, 11, 12], 2)]


async def test_a_verify_that_is_sent_again_asks_again(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        proposal = await found.propose()
        assert proposal.ask_next is not None
        lost = verify_pb2.Verify()
        proposal.ask_next(found.target, lost)
        following = found.verify(proposal)
        assert following is not None
        assert following.command_id > lost.next_propose.command_id
        assert (await found.propose()).tokens == [9, 10, 11]
        # What never comes is not waited for.
        assert len(found.link._pending._waiting) == 0


async def test_a_proposal_that_fails_is_asked_for_in_a_message(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.fake.misfits[9] = [512]
        found.verify(await found.propose())
        assert (await found.propose()).tokens == [9, 10, 11]
        assert (await found.commands())[2:] == [7, (7, [7, 8], 3)]


async def test_the_end_of_a_generation_takes_back_what_follows(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.verify(await found.propose(), answers=False)
        await found.commands()
        found.drafter.truncate(len(found.context) - 1)
        found.drafter.release()
        assert await found.commands() == [7, "release"]
        assert len(found.link._pending._waiting) == 0


FIXED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=3)


@pytest.mark.parametrize(
    ("speculation", "prediction", "is_following"),
    [
        (FIXED, (), True),
        (replace(FIXED, num_speculative_tokens=Bounds()), (), False),
        (replace(FIXED, drafter=Drafter.HYBRID), (), False),
        (replace(FIXED, draft_mode=DraftMode.SAMPLED), (), False),
        (replace(FIXED, lenience=0.5), (), False),
        (FIXED, (1, 2), False),
    ],
)
async def test_it_follows_where_every_round_asks_the_model_and_the_server_decides_it_alone(
    tmp_path: Path, speculation: SpeculationParams, prediction: tuple[int, ...], is_following: bool
) -> None:
    async with rounds(tmp_path) as found:
        sampling = SamplingParams(temperature=0.0 if speculation.lenience < 1 else 1.0, seed=1)
        request = replace(found.context.request, sampling=sampling, speculation=speculation, prediction=prediction)
        targets: Any = SimpleNamespace(endpoints=[SimpleNamespace(link=found.target)])
        found.target.device_ids = frozenset[str]()
        found.link.may_share_device = lambda other: True  # type: ignore[method-assign]
        drafter = make_model(Resources(targets=targets), request, found.drafter._placement)
        assert isinstance(drafter, FollowingDrafter) == is_following
