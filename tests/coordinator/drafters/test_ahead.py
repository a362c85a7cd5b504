"""When the draft model drafts ahead, what a round gets of it, and what a miss leaves behind.

The draft server is a fake: the text is that each token is its position, and drafts are wrong where a test says so.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ahead import AheadDrafter, may_draft_ahead
from coordinator.drafters.ahead_stats import AheadStats
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.drafter import Resources
from coordinator.drafters.model import make_model
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Pool
from coordinator.remote.server_load import ServerLoad
from paceline.grammar import Grammar
from paceline.rpc.address_source import AddressSource
from paceline.rpc.model_messages import floats_to_bytes
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import DraftMode, EntropyAdaptive, Rule, SpeculationParams
from paceline.v1 import model_pb2
from tests.coordinator.contexts import decide, make_context
from tests.coordinator.fake_server import FakeServer, serving

WRONG = 399
NUM_PROMPT_TOKENS = 4


def confidence(position: int) -> float:
    return position / 512


class FakeDraft(FakeServer):
    """Drafts step by step, or all in one forward pass."""

    def __init__(self, num_masks: int = 0) -> None:
        super().__init__(
            "draft", max_model_len=512, vocab_size=512, num_mask_tokens=num_masks, device_ids=["draft's"], block_size=16, total_blocks=100,
        )  # fmt: skip
        self.num_masks, self.step_us = num_masks, 0
        self.wrong: set[int] = set()
        # What is answered once in place of the drafts from a position on.
        self.misfits: dict[int, list[int]] = {}
        # Of Propose: position, tail and number of drafts; of Truncate the length.
        self.commands: list[Any] = []
        # Cleared while answers are to wait.
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self._ends = asyncio.Event()
        self._answering: set[asyncio.Task[None]] = set()

    def end_streams(self) -> None:
        self._ends.set()

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        responses: asyncio.Queue[Any] = asyncio.Queue()
        responses.put_nowait(model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake")))
        self._ends.clear()
        tasks = [asyncio.create_task(self._read(requests, responses)), asyncio.create_task(self._end(responses))]
        try:
            while (response := await responses.get()) is not None:
                yield response
        finally:
            for task in tasks:
                task.cancel()

    async def _end(self, responses: asyncio.Queue[Any]) -> None:
        await self._ends.wait()
        responses.put_nowait(None)

    async def _read(self, requests: AsyncIterator[Any], responses: asyncio.Queue[Any]) -> None:
        async for request in requests:
            for command in request.commands:
                kind = command.WhichOneof("command")
                if kind == "truncate":
                    self.commands.append(command.truncate.length)
                elif kind == "propose":
                    propose = command.propose
                    self.commands.append((propose.position, list(propose.tail_tokens), propose.num_draft_tokens))
                    answering = asyncio.create_task(self._answer(command, responses))
                    self._answering.add(answering)
                    answering.add_done_callback(self._answering.discard)
                else:
                    self.commands.append(kind)

    async def _answer(self, command: Any, responses: asyncio.Queue[Any]) -> None:
        begin, num = command.propose.position + len(command.propose.tail_tokens), command.propose.num_draft_tokens
        await self.may_answer.wait()
        response = model_pb2.SessionResponse()
        proposal = response.answers.add(command_id=command.command_id).proposal
        drafts = [WRONG if position in self.wrong else position for position in range(begin, begin + num)]
        proposal.tokens.extend(self.misfits.pop(begin, drafts))
        proposal.first_position = begin
        proposal.num_fed_drafts = 0 if self.num_masks else num - 1
        proposal.compute_us = num * self.step_us
        if command.propose.min_probability > 0:
            proposal.confidences = floats_to_bytes(
                np.array([confidence(begin + index) for index in range(len(proposal.tokens))])
            )
        responses.put_nowait(response)


class Rounds:
    """One generation, whose prompt and first token are decided."""

    def __init__(self, fake: FakeDraft, pool: Pool, target_devices: Sequence[str]) -> None:
        self.fake, self.ahead_stats = fake, AheadStats()
        self.context: Context = make_context(list(range(NUM_PROMPT_TOKENS)))
        decide(self.context, [NUM_PROMPT_TOKENS])
        target = SimpleNamespace(device_ids=frozenset(target_devices), has_draft=lambda draft: False)
        targets: Any = SimpleNamespace(endpoints=[SimpleNamespace(link=target)])
        placement = Placement(pool, self.context.request, self.context.tokens)
        self.link = placement.link
        self.drafter = AheadDrafter(placement, self.context.request, DraftDeadline(), targets, self.ahead_stats)

    async def propose(self, num_draft_tokens: int = 3, after: tuple[int, ...] = ()) -> Proposal:
        """A round waits for the target, which takes a while."""
        proposal = await self.drafter.propose(self.context, num_draft_tokens, 1e-3, after)
        await asyncio.sleep(0.02)
        return proposal

    def verify(self, proposal: Proposal, num_verified: int | None = None) -> None:
        """Decides the first `num_verified` drafts, or all, and one more token."""
        begin, num_tokens = len(self.context), 0
        for draft in proposal.tokens[:num_verified]:
            if draft != begin + num_tokens:
                break
            num_tokens += 1
        decide(self.context, list(range(begin, begin + num_tokens + 1)))
        self.drafter.truncate(self.context.num_fed)

    async def round(self, num_draft_tokens: int = 3) -> Proposal:
        proposal = await self.propose(num_draft_tokens)
        self.verify(proposal)
        return proposal

    @property
    def num_hits_and_misses(self) -> tuple[int, int]:
        return self.ahead_stats.num_hits, self.ahead_stats.num_misses

    async def commands(self) -> list[Any]:
        """Returns those since the last call."""
        await asyncio.sleep(0.05)
        commands, self.fake.commands = self.fake.commands, []
        return commands


@contextlib.asynccontextmanager
async def rounds(
    folder: Path, num_masks: int = 0, target_devices: Sequence[str] = ("target's",), num_servers: int = 1
) -> AsyncIterator[Rounds]:
    fake, addresses = FakeDraft(num_masks), []
    async with contextlib.AsyncExitStack() as stack:
        for number in range(num_servers):
            addresses.append(await stack.enter_async_context(serving(fake, f"unix:{folder}/{number}.sock")))
        pool = Pool("draft", AddressSource("draft", ",".join(addresses)), lambda address, model_info: None)
        stack.push_async_callback(pool.stop)
        await pool.start()
        async with asyncio.timeout(20):
            while not all(each.is_serving for each in pool.endpoints):
                await asyncio.sleep(0.01)
        found = Rounds(fake, pool, target_devices)
        # A first round, without an early draft.
        found.link.load = ServerLoad(utilization=1.0)
        await found.round()
        await found.commands()
        found.link.load = ServerLoad(utilization=0.0)
        yield found


async def test_an_early_draft_that_is_won_is_the_next_proposal_and_nothing_else_is_asked_for(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        assert (await found.propose()).tokens == [9, 10, 11]
        assert await found.commands() == [(7, [7, 8], 3), (11, [11], 4)]
        found.verify(Proposal([9, 10, 11]))
        proposal = await found.round()
        assert proposal.tokens == [13, 14, 15]
        assert proposal.report.is_ahead
        assert await found.commands() == [(15, [15], 4)]
        assert (await found.round()).tokens == [17, 18, 19]
        assert found.num_hits_and_misses == (2, 0)


@pytest.mark.parametrize("wrong", [9, 11, 12], ids=["first draft", "last draft", "bonus"])
async def test_an_early_draft_that_is_lost_ends_at_once_and_drafting_begins_anew(tmp_path: Path, wrong: int) -> None:
    async with rounds(tmp_path) as found:
        found.fake.wrong = {wrong}
        await found.round()
        await found.commands()
        found.fake.wrong = set()
        begin = len(found.context)
        assert (await found.propose()).tokens == [begin, begin + 1, begin + 2]
        # To its start, or before it.
        position = min(11, begin - 1)
        tail = list(range(position, begin))
        early_draft = (begin + 2, [begin + 2], 4)
        truncates = [position] if wrong == 12 else []
        assert await found.commands() == [*truncates, (position, tail, 3), early_draft]
        assert found.num_hits_and_misses == (0, 1)


async def test_a_truncate_ends_an_early_draft_before_the_next_proposal_is_asked_for(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.fake.wrong = {9}
        await found.round()
        assert (await found.commands())[-1] == 9


async def test_drafts_in_one_forward_are_read_with_the_next_ones(tmp_path: Path) -> None:
    async with rounds(tmp_path, num_masks=7) as found:
        await found.round()
        assert await found.commands() == [(5, [5, 6, 7, 8], 3), (9, [9, 10, 11], 4)]
        assert (await found.round()).tokens == [13, 14, 15]
        # The bonus token has not been read either.
        assert await found.commands() == [(12, [12, 13, 14, 15], 4)]
        assert (await found.round()).tokens == [17, 18, 19]


async def test_a_policy_may_ask_for_fewer_and_verify_fewer(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        await found.round()
        proposal = await found.propose(1)
        assert (proposal.tokens, proposal.report.confidences) == ([13], [confidence(13)])
        found.verify(proposal)
        # 14 was drafted too, and was the bonus token; 15 and those after it are there.
        proposal = await found.propose()
        assert proposal.tokens == [15, 16, 17]
        assert proposal.report.confidences == [confidence(each) for each in proposal.tokens]
        found.verify(proposal, num_verified=1)
        assert (await found.round(2)).tokens == [17, 18]
        assert found.num_hits_and_misses == (3, 0)


async def test_a_proposal_after_looked_up_tokens_is_drafted_anew(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        await found.round()
        proposal = await found.propose(3, after=(13, 14))
        assert proposal.tokens == [15, 16, 17]
        assert not proposal.report.is_ahead
        assert found.num_hits_and_misses == (0, 1)


async def test_a_round_waits_for_an_early_draft_that_is_not_answered_yet(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        proposal = await found.drafter.propose(found.context, 3)
        found.fake.may_answer.clear()
        found.verify(proposal)
        waiting = asyncio.ensure_future(found.propose())
        await asyncio.sleep(0.05)
        assert not waiting.done()
        found.fake.may_answer.set()
        assert (await waiting).tokens == [13, 14, 15]


async def test_a_move_to_another_server_drops_the_early_drafts(tmp_path: Path) -> None:
    async with rounds(tmp_path, num_servers=2) as found:
        await found.round()
        await found.commands()
        assert found.drafter._placement.migrate()
        proposal = await found.propose()
        assert (proposal.tokens, proposal.report.is_ahead) == ([13, 14, 15], False)
        assert (0, list(range(13)), 3) in await found.commands()


async def test_an_answer_that_comes_too_late_is_ignored(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.fake.wrong = {9}
        proposal = await found.drafter.propose(found.context, 3)
        found.fake.may_answer.clear()
        found.verify(proposal)
        found.fake.wrong = set()
        asyncio.get_running_loop().call_later(0.05, found.fake.may_answer.set)
        assert (await found.propose()).tokens == [10, 11, 12]
        assert found.link.is_up


@pytest.mark.parametrize("misfit", [[], [512], [13] * 5], ids=["nothing", "no token", "more than asked for"])
async def test_an_answer_that_does_not_fit_loses_the_early_drafts(tmp_path: Path, misfit: list[int]) -> None:
    async with rounds(tmp_path) as found:
        found.fake.misfits[12] = misfit
        await found.round()
        assert (await found.propose()).tokens == [13, 14, 15]
        assert found.num_hits_and_misses == (0, 1)


@pytest.mark.parametrize("ends", ["while it is drafted", "while a round waits for it"])
async def test_a_link_that_breaks_costs_the_early_drafts_alone(tmp_path: Path, ends: str) -> None:
    unseen: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, told: unseen.append(told))
    async with rounds(tmp_path) as found:
        proposal = await found.drafter.propose(found.context, 3)
        found.fake.may_answer.clear()
        found.verify(proposal)
        waiting = asyncio.ensure_future(found.propose()) if ends == "while a round waits for it" else None
        await asyncio.sleep(0.05)
        found.fake.end_streams()
        async with asyncio.timeout(20):
            while found.link.is_up:
                await asyncio.sleep(0.01)
        if waiting is not None:
            # Its link is away, so there is no other proposal.
            assert (await waiting).tokens == []
        found.fake.may_answer.set()
        async with asyncio.timeout(20):
            while found.drafter.absence(found.context):
                await asyncio.sleep(0.01)
        assert (await found.propose()).tokens == [13, 14, 15]
        assert found.num_hits_and_misses == (0, 1)
    assert unseen == []


@pytest.mark.parametrize("is_early_draft", [True, False])
async def test_a_death_during_an_early_draft_counts_as_one_during_a_proposal(
    tmp_path: Path, is_early_draft: bool
) -> None:
    """The third one in a row is the last."""
    async with rounds(tmp_path) as found:

        async def die() -> None:
            found.fake.end_streams()
            while found.link.is_up:
                await asyncio.sleep(0.01)
            found.fake.may_answer.set()
            while found.drafter.absence(found.context) in ("draft server away", "draft server in trouble"):
                await asyncio.sleep(0.01)

        async with asyncio.timeout(20):
            if is_early_draft:
                proposal = await found.drafter.propose(found.context, 3)
                found.fake.may_answer.clear()
                found.verify(proposal)
                await die()
            for _ in range(2):
                found.fake.may_answer.clear()
                asking = asyncio.ensure_future(found.propose())
                await asyncio.sleep(0.05)
                await die()
                assert (await asking).tokens == []
            is_over = found.drafter.absence(found.context) == "it may have killed draft servers"
            assert is_over == is_early_draft


async def test_an_early_draft_that_was_waited_for_too_long_is_no_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with rounds(tmp_path) as found:
        proposal = await found.drafter.propose(found.context, 3)
        found.fake.may_answer.clear()
        found.verify(proposal)
        monkeypatch.setattr(found.drafter._deadline, "seconds", lambda num_tokens: 0.05)
        assert (await found.propose()).tokens == []
        assert found.num_hits_and_misses == (0, 1)


@pytest.mark.parametrize("is_answered", [True, False])
async def test_a_release_leaves_no_undecided_token_to_others(tmp_path: Path, is_answered: bool) -> None:
    async with rounds(tmp_path) as found:
        if not is_answered:
            proposal = await found.propose()
            found.fake.may_answer.clear()
            found.verify(proposal)
            # A round that is cut off while it waits for its proposal.
            waiting = asyncio.ensure_future(found.propose())
            await found.commands()
            waiting.cancel()
            await asyncio.wait([waiting])
        else:
            await found.propose()
            await found.commands()
        found.drafter.truncate(len(found.context) - 1)
        found.drafter.release()
        *_, truncate, release = await found.commands()
        assert (truncate <= len(found.context) - 1, release) == (True, "release")


@pytest.mark.parametrize("devices", [(), ("draft's",), ("another", "draft's")], ids=str)
async def test_a_device_that_is_shared_or_not_told_of_is_not_taken(tmp_path: Path, devices: tuple[str, ...]) -> None:
    async with rounds(tmp_path, target_devices=devices) as found:
        await found.round()
        assert await found.commands() == [(7, [7, 8], 3)]


async def test_a_draft_server_that_is_busy_for_others_gets_no_early_drafts(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.link.load = ServerLoad(utilization=0.6)
        await found.round()
        assert await found.commands() == [(7, [7, 8], 3)]
        # It is busy for this coordinator alone.
        found.ahead_stats.at(found.link).use(0.4)
        await found.round()
        assert len(await found.commands()) == 2


async def test_drafts_that_take_longer_than_what_they_save_get_no_early_drafts(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        found.fake.step_us = 1_000_000
        await found.round()
        assert await found.commands() == [(7, [7, 8], 3)]
        found.fake.step_us = 0
        await found.round()
        assert len(await found.commands()) == 2


GREEDY, DRAWN = SamplingParams(seed=1), SamplingParams(seed=1, temperature=1.0)


@pytest.mark.parametrize(
    ("sampling", "speculation", "is_fit"),
    [
        (GREEDY, SpeculationParams(), True),
        (DRAWN, SpeculationParams(), True),
        (DRAWN, SpeculationParams(draft_mode=DraftMode.GREEDY), True),
        (DRAWN, SpeculationParams(rule=Rule.REJECTION), False),
        (DRAWN, SpeculationParams(lenience=0.9), False),
        (GREEDY, SpeculationParams(lenience=0.9), False),
        (GREEDY, SpeculationParams(num_speculative_tokens=EntropyAdaptive()), False),
    ],
)
def test_texts_that_would_depend_on_it_are_not_drafted_ahead(
    sampling: SamplingParams, speculation: SpeculationParams, is_fit: bool
) -> None:
    request = replace(make_context([1]).request, sampling=sampling, speculation=speculation)
    assert may_draft_ahead(request) is is_fit
    grammar: Any = Grammar
    assert not may_draft_ahead(replace(request, grammar=grammar))


async def test_the_factory_makes_it_for_requests_that_it_fits(tmp_path: Path) -> None:
    async with rounds(tmp_path) as found:
        placement, resources = found.drafter._placement, Resources(targets=found.drafter._targets)
        request = found.context.request
        assert isinstance(make_model(resources, request, placement), AheadDrafter)
        drawn = replace(request, sampling=DRAWN, speculation=SpeculationParams(rule=Rule.REJECTION))
        assert not isinstance(make_model(resources, drawn, placement), AheadDrafter)
        assert not isinstance(make_model(replace(resources, targets=None), request, placement), AheadDrafter)
        shared = SimpleNamespace(endpoints=[SimpleNamespace(link=found.link)])
        assert not isinstance(make_model(replace(resources, targets=shared), request, placement), AheadDrafter)
