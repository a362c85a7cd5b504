"""Rounds that a target goes on with by itself: the same tokens, fewer commands, and no round of another text.

The server is a fake that goes on at once, as far as it was told to: it is always ahead of the coordinator.
"""

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.decoding import generate
from coordinator.drafters.drafter import NoDrafter
from coordinator.policy.policy import MOST_ROUNDS, FixedPolicy
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Pool
from coordinator.remote.target import RemoteTarget
from coordinator.reports import DraftReport
from coordinator.stats import GenerationStats, Round
from paceline.errors import PacelineError
from paceline.rpc.address_source import AddressSource
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Rule, SpeculationParams
from paceline.v1 import model_pb2
from tests.coordinator.contexts import make_context
from tests.coordinator.fake_server import FakeServer, serving

PROMPT, NUM_TOKENS = [3, 14, 15], 60


def next_token(tokens: list[int]) -> int:
    return (sum(each * (at + 1) for at, each in enumerate(tokens)) * 31 + 7) % 400


def expected(num_tokens: int = NUM_TOKENS) -> list[int]:
    tokens = [*PROMPT]
    while len(tokens) < len(PROMPT) + num_tokens:
        tokens.append(next_token(tokens))
    return tokens


class FakeTarget(FakeServer):
    def __init__(self) -> None:
        super().__init__("target", max_model_len=512, vocab_size=512, block_size=16)
        self.caches: dict[int, list[int]] = defaultdict(list)
        self.commands: list[Any] = []
        self.num_answers = 0
        # By the number of the answer: what takes its place.
        self.failures: dict[int, model_pb2.Failure] = {}
        # The answer after which the stream breaks.
        self.breaks_at = 0

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.caches.clear()
        yield model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake"))
        async for request in requests:
            for command in request.commands:
                self.commands.append(command)
                cache, kind = self.caches[command.sequence_id], command.WhichOneof("command")
                if kind == "truncate":
                    del cache[command.truncate.length :]
                elif kind == "verify":
                    for answer in self.answers(command, cache):
                        yield model_pb2.SessionResponse(answers=[answer])
                        self.num_answers += 1
                        if self.num_answers == self.breaks_at:
                            return

    def answers(self, command: Any, cache: list[int]) -> list[model_pb2.Answer]:
        asked = command.verify
        if asked.position != len(cache):
            return [self.failure(command, grpc.StatusCode.OUT_OF_RANGE, len(cache))]
        found, fed = [], [*asked.tail_tokens, *asked.draft_tokens]
        for number in range(asked.num_more_rounds + 1):
            first = len(cache) + len(fed) - (len(asked.draft_tokens) if number == 0 else 0)
            cache += fed
            tokens = [next_token(cache[:at]) for at in range(first, len(cache) + 1)]
            answer = model_pb2.Answer(command_id=command.command_id, has_more=number < asked.num_more_rounds)
            answer.verify_result.tokens.extend(tokens)
            if (failure := self.failures.pop(self.num_answers + len(found), None)) is not None:
                return [*found, model_pb2.Answer(command_id=command.command_id, failure=failure)]
            found.append(answer)
            num_right = next((at for at, each in enumerate(tokens[:-1]) if cache[first + at] != each), len(tokens) - 1)
            if answer.has_more:
                del cache[first + num_right :]
            fed = [tokens[num_right]]
        return found

    def failure(self, command: Any, code: grpc.StatusCode, cache_length: int | None) -> model_pb2.Answer:
        return model_pb2.Answer(command_id=command.command_id, failure=failure_of(code, cache_length))

    def kinds(self) -> list[str]:
        return [each.WhichOneof("command") for each in self.commands]


def failure_of(code: grpc.StatusCode, cache_length: int | None = None) -> model_pb2.Failure:
    failure = model_pb2.Failure()
    failure.status.code = code.value[0]
    if cache_length is not None:
        failure.cache_length = cache_length
    return failure


class SteppingTarget(FakeTarget):
    """Takes commands between its rounds, as a server does; it goes on with what was suggested."""

    round_s = 0.01

    async def Session(self, requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        self.caches.clear()
        yield model_pb2.SessionResponse(session_info=model_pb2.SessionInfo(session_id="fake"))
        coming = asyncio.Queue[Any]()

        async def read() -> None:
            async for request in requests:
                for command in request.commands:
                    self.commands.append(command)
                    coming.put_nowait(command)

        reader = asyncio.create_task(read())
        try:
            while True:
                command = await coming.get()
                cache, kind = self.caches[command.sequence_id], command.WhichOneof("command")
                if kind == "truncate":
                    del cache[command.truncate.length :]
                elif kind == "verify" and command.verify.position != len(cache):
                    failure = self.failure(command, grpc.StatusCode.OUT_OF_RANGE, len(cache))
                    yield model_pb2.SessionResponse(answers=[failure])
                elif kind == "verify":
                    async for answer in self._run(command, cache, coming):
                        yield model_pb2.SessionResponse(answers=[answer])
        finally:
            reader.cancel()

    async def _run(self, command: Any, cache: list[int], coming: asyncio.Queue[Any]) -> AsyncIterator[model_pb2.Answer]:
        asked, suggested, suggest = command.verify, list[int](), None
        tail, drafts = list(asked.tail_tokens), list(asked.draft_tokens)
        for num_left in range(asked.num_more_rounds, -1, -1):
            await asyncio.sleep(self.round_s)
            first = len(cache) + len(tail)
            cache += [*tail, *drafts]
            tokens = [next_token(cache[:at]) for at in range(first, len(cache) + 1)]
            num_right = next((at for at, each in enumerate(drafts) if tokens[at] != each), len(drafts))
            length, newest, was_suggested = first + num_right, tokens[num_right], suggested
            others: list[Any] = []
            while not coming.empty():
                if (other := coming.get_nowait()).WhichOneof("command") == "suggest":
                    suggest = other.suggest
                else:
                    others.append(other)
            for other in others:
                coming.put_nowait(other)
            suggested = []
            if suggest is not None:
                known = [*cache[suggest.position : length], newest]
                if suggest.position <= length and list(suggest.tokens)[: len(known)] == known:
                    suggested = list(suggest.tokens)[len(known) :]
            has_more = num_left > 0 and not others and not (suggest is not None and suggest.is_last)
            answer = model_pb2.Answer(command_id=command.command_id, has_more=has_more)
            answer.verify_result.tokens.extend(tokens)
            answer.verify_result.suggested_tokens.extend(was_suggested)
            yield answer
            if not has_more:
                return
            del cache[length:]
            tail, drafts = [newest], suggested


class Suggests(FixedPolicy):
    """In every `every`-th round suggests a draft that comes by itself, right ones and a wrong one, if `is_wrong`."""

    def __init__(self, every: int, is_wrong: bool = True, num_right: int = 3, last: int = 0) -> None:
        super().__init__(NoDrafter(), 4)
        self._every, self._is_wrong, self._num_right, self._last = every, is_wrong, num_right, last
        self.rounds: list[Round] = []

    async def propose_after_prompt(self, context: Context) -> Proposal:
        if len(self.rounds) % self._every:
            return Proposal()
        right = expected(512)[len(context.tokens) :][: self._num_right]
        wrong = [(next_token([*context.tokens, *right]) + 1) % 400] * self._is_wrong
        return Proposal([*right, *wrong][: context.draft_room], report=DraftReport(drafter="ngram"))

    @property
    def goes_on(self) -> bool:
        return not self._last or len(self.rounds) % self._last != 0

    @property
    def may_come_late(self) -> bool:
        return True

    def learn(self, finished: Round) -> None:
        super().learn(finished)
        self.rounds.append(finished)


class SometimesDrafts(FixedPolicy):
    """Drafts in every `every`-th round, right ones and a wrong one; otherwise the target goes on by itself."""

    def __init__(self, every: int) -> None:
        super().__init__(NoDrafter(), 4)
        self._every, self._num_rounds = every, 0

    async def propose_after_prompt(self, context: Context) -> Proposal:
        self._num_rounds += 1
        if self._num_rounds % self._every:
            return Proposal()
        right = expected(512)[len(context.tokens) :][:2]
        return Proposal([*right, (next_token([*context.tokens, *right]) + 1) % 400])


class Slow(FixedPolicy):
    """Lets the target get far ahead before it has nothing to propose, as a draft server that is late does."""

    def __init__(self) -> None:
        super().__init__(NoDrafter(), 0)

    async def propose_after_prompt(self, context: Context) -> Proposal:
        await asyncio.sleep(0.005)
        return Proposal()


@contextlib.asynccontextmanager
async def linked(fake: FakeTarget, folder: Path) -> AsyncIterator[Pool]:
    async with serving(fake, f"unix:{folder}/target.sock") as address:
        pool = Pool("target", AddressSource("target", address), lambda address, model_info: None)
        try:
            await pool.start()
            await pool.wait_up(20)
            yield pool
        finally:
            await pool.stop()


def plain_context(num_tokens: int = NUM_TOKENS, **changes: Any) -> Context:
    context = make_context(PROMPT, max_tokens=num_tokens)
    off = replace(context.request, speculation=SpeculationParams(enabled=False), **changes)
    return Context(off, context._text)


async def decode(pool: Pool, context: Context, policy: FixedPolicy | None = None) -> list[int]:
    placement = Placement(pool, context.request, context.tokens)
    target = RemoteTarget(placement, context.request, 20)
    async for _ in generate(context, policy or FixedPolicy(NoDrafter(), 0), target, GenerationStats()):
        pass
    return context.tokens


async def test_one_command_is_many_rounds(tmp_path: Path) -> None:
    fake = FakeTarget()
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context()) == expected()
        verifies = [each.verify for each in fake.commands if each.WhichOneof("command") == "verify"]
        assert len(verifies) == -(-NUM_TOKENS // (MOST_ROUNDS + 1))
        assert fake.num_answers == NUM_TOKENS
        # It is told to go on no further than there is room for.
        assert verifies[-1].num_more_rounds < MOST_ROUNDS


@pytest.mark.parametrize("every", [2, 3, 7])
async def test_drafts_make_the_server_drop_what_it_went_on_with(tmp_path: Path, every: int) -> None:
    fake = FakeTarget()
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context(), SometimesDrafts(every)) == expected()
    # What the server has of the future is truncated, and not found by a command that is refused.
    assert "failure" not in {each.WhichOneof("command") for each in fake.commands}
    for before, command in zip(fake.commands, fake.commands[1:], strict=False):
        if command.verify.draft_tokens:
            assert before.WhichOneof("command") == "truncate"
            assert before.truncate.length == command.verify.position


@pytest.mark.parametrize("is_wrong", [True, False])
@pytest.mark.parametrize("every", [1, 2, 5])
async def test_drafts_come_late_and_interrupt_nothing(tmp_path: Path, every: int, is_wrong: bool) -> None:
    fake, policy = SteppingTarget(), Suggests(every, is_wrong)
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context(), policy) == expected()
    checked = [each for each in policy.rounds if each.proposal.tokens]
    assert len(checked) > 5
    assert {each.proposal.report.drafter for each in checked} == {"ngram"}
    num_accepted = sum(each.outcome.num_accepted for each in checked)
    assert len(policy.rounds) + num_accepted == NUM_TOKENS
    assert num_accepted > 0
    if is_wrong:
        # One command is enough, and the truncate is that of the end.
        assert fake.kinds().count("verify") == 1
        assert fake.kinds().count("truncate") <= 1


async def test_drafts_of_another_text_are_no_part_of_any_round(tmp_path: Path) -> None:
    fake, policy = SteppingTarget(), Suggests(1, is_wrong=True, num_right=0)
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context(), policy) == expected()
    assert not any(each.proposal.tokens for each in policy.rounds[1:])


@pytest.mark.parametrize("last", [2, 5])
async def test_a_target_goes_on_no_longer_than_it_should(tmp_path: Path, last: int) -> None:
    fake, policy = SteppingTarget(), Suggests(1, is_wrong=True, num_right=0, last=last)
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context(), policy) == expected()
    assert fake.kinds().count("verify") > NUM_TOKENS / last / 3
    assert any(each.suggest.is_last for each in fake.commands)


async def test_answers_that_came_long_ago_are_taken_in_their_order(tmp_path: Path) -> None:
    fake = FakeTarget()
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context(), Slow()) == expected()
        assert fake.kinds().count("verify") == -(-NUM_TOKENS // (MOST_ROUNDS + 1))


@pytest.mark.parametrize("num_told", [0, 3])
async def test_a_server_that_goes_on_unasked_is_no_server(
    tmp_path: Path, num_told: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be waited for in vain."""
    monkeypatch.setattr("coordinator.policy.policy.MOST_ROUNDS", num_told)
    fake, answers = FakeTarget(), FakeTarget.answers

    def more(command: Any, cache: list[int]) -> list[model_pb2.Answer]:
        command.verify.num_more_rounds += 2 - fake.kinds().count("open")
        return answers(fake, command, cache)

    monkeypatch.setattr(fake, "answers", more)
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context()) == expected()
        # The stream was given up, and the next server keeps to what it is told.
        assert fake.kinds().count("open") == 2


@pytest.mark.parametrize("policy", [FixedPolicy(NoDrafter(), 0), Slow(), SometimesDrafts(2)])
async def test_a_server_that_dies_of_a_round_that_it_goes_on_with_has_died_of_the_request(
    tmp_path: Path, policy: FixedPolicy
) -> None:
    fake = FakeTarget()
    async with linked(fake, tmp_path) as pool:
        context = plain_context()
        placement, losses = Placement(pool, context.request, context.tokens), []
        placement.on_lost = losses.append  # type: ignore[method-assign]
        fake.breaks_at = 3
        target = RemoteTarget(placement, context.request, 20)
        async for _ in generate(context, policy, target, GenerationStats()):
            while fake.num_answers == fake.breaks_at and pool.is_up:
                await asyncio.sleep(0.01)
        assert context.tokens == expected()
        assert len({each.loss for each in losses}) == 1


@pytest.mark.parametrize("answer", [1, 2, 5, 17])
async def test_a_link_that_breaks_meanwhile_costs_no_token(tmp_path: Path, answer: int) -> None:
    fake = FakeTarget()
    fake.breaks_at = answer
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context()) == expected()
        assert fake.kinds().count("open") == 2


@pytest.mark.parametrize("code", [grpc.StatusCode.OUT_OF_RANGE, grpc.StatusCode.RESOURCE_EXHAUSTED])
async def test_a_round_that_was_not_to_be_is_asked_for(tmp_path: Path, code: grpc.StatusCode) -> None:
    """A cache of another length than believed, or without room."""
    fake = FakeTarget()
    fake.failures[4] = failure_of(code, 6 if code is grpc.StatusCode.OUT_OF_RANGE else None)
    async with linked(fake, tmp_path) as pool:
        assert await decode(pool, plain_context()) == expected()


async def test_an_error_is_the_generation_s(tmp_path: Path) -> None:
    fake = FakeTarget()
    fake.failures[4] = failure_of(grpc.StatusCode.INVALID_ARGUMENT)
    async with linked(fake, tmp_path) as pool:
        with pytest.raises(PacelineError):
            await decode(pool, plain_context())


@pytest.mark.parametrize("num_rounds", [1, 4])
async def test_one_that_is_cut_off_leaves_nothing_behind(tmp_path: Path, num_rounds: int) -> None:
    """What the server went on with is no text of this request."""
    fake = FakeTarget()
    async with linked(fake, tmp_path) as pool:
        context = plain_context()
        target = RemoteTarget(Placement(pool, context.request, context.tokens), context.request, 20)
        rounds = generate(context, FixedPolicy(NoDrafter(), 0), target, GenerationStats())
        for _ in range(num_rounds):
            await anext(rounds)
        await rounds.aclose()
        async with asyncio.timeout(20):
            while fake.kinds()[-1] != "release":
                await asyncio.sleep(0.01)
        assert fake.kinds()[-2:] == ["truncate", "release"]
        assert fake.commands[-2].truncate.length == len(PROMPT) + num_rounds - 1


async def test_a_text_that_others_decide_is_asked_for_round_by_round(tmp_path: Path) -> None:
    """Under `rejection` and with lenience the coordinator decides."""
    fake = FakeTarget()
    ways = [
        SpeculationParams(rule=Rule.REJECTION, num_speculative_tokens=0),
        SpeculationParams(lenience=0.5, num_speculative_tokens=0),
    ]
    async with linked(fake, tmp_path) as pool:
        for way in ways:
            context = make_context(PROMPT, max_tokens=5)
            sampling = SamplingParams(seed=1, max_tokens=5, temperature=0.7)
            other = Context(replace(context.request, sampling=sampling, speculation=way), context._text)
            await decode(pool, other)
    assert not any(each.verify.num_more_rounds for each in fake.commands)
