"""Generations with drafts of a head move from one target to another, with a head or without: no token changes."""

import asyncio
import signal
from pathlib import Path

import pytest

from paceline.client import AsyncClient, Completion
from paceline.output_format import OutputFormat
from paceline.rpc.health import is_serving
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, SpeculationParams
from tests.conftest import SMALL_FLAGS, UNLIKE_TARGET
from tests.draft_heads import write_head
from tests.end_to_end.test_pools import Pools, pools
from tests.services import wait_until_free
from tests.thinking import write_thinking_model

pytestmark = pytest.mark.slow

TARGETS = ("target a", "target b")
FIXED, ADAPTIVE = (1, 2, 5, 16), (Bounds(0, 8), Bounds(1, 8))
WAYS = [
    *(SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=each) for each in (*FIXED, *ADAPTIVE)),
    # `hybrid`, which may use the head.
    SpeculationParams(),
]
OFF = SpeculationParams(enabled=False)
NUM_TOKENS, UNDER_WAY_TOKENS, TRIES = 400, 8, 10


# No token of it is forced, and it does not end before NUM_TOKENS.
FORMAT = OutputFormat(regex=f"([0-9][a-z]){{{NUM_TOKENS}}}")


def sampling_of(number: int, form: OutputFormat | None) -> SamplingParams:
    """Each way of drafting is asked for once greedily and once from a seed."""
    temperature = 0.8 * (number // len(WAYS) % 2)
    return SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=form is None, temperature=temperature, seed=number)


class Streams:
    """Generations that are followed: `completions` has what came of each so far."""

    def __init__(self, client: AsyncClient, form: OutputFormat | None = None) -> None:
        self._client, self._form = client, form
        self.completions = [Completion() for _ in range(2 * len(WAYS))]
        self._tasks = [asyncio.create_task(self._follow(number)) for number in range(len(self.completions))]

    async def are_under_way(self) -> bool:
        """Waits until all have begun. Returns whether none has ended, so that they can be disturbed."""
        while any(len(each.token_ids) < UNDER_WAY_TOKENS for each in self.completions):
            assert not any(task.done() and task.exception() for task in self._tasks)
            await asyncio.sleep(0.002)
        return all(each.finish is None for each in self.completions)

    @property
    def are_at_both(self) -> bool:
        """Whether a head drafts for some, and for others none does."""
        return 0 < self.num_rounds_of_head().count(0) < 2 * len(FIXED)

    async def end(self) -> list[list[int]]:
        await asyncio.gather(*self._tasks)
        return [each.token_ids for each in self.completions]

    def num_rounds_of_head(self) -> list[int]:
        """Of each generation that asks for drafts in every round."""
        asking = [each for number, each in enumerate(self.completions) if number % len(WAYS) < len(FIXED)]
        return [sum(trace.drafter == "head" for trace in each.traces) for each in asking]

    async def _follow(self, number: int) -> None:
        way = WAYS[number % len(WAYS)]
        sampling = sampling_of(number, self._form)
        async for chunk in self._client.stream(prompt_of(number), sampling, way, trace=True, format=self._form):
            self.completions[number].add(chunk)


async def streams_under_way(client: AsyncClient, form: OutputFormat | None = None, at_both: bool = False) -> Streams:
    """Begins generations; again if a busy machine let some end too early, or made one target so slow that it got none."""
    for _ in range(TRIES):
        streams = Streams(client, form)
        if await streams.are_under_way() and (streams.are_at_both or not at_both):
            return streams
        await streams.end()
    raise AssertionError(f"not under way, or not at both targets, in {TRIES} tries")


def prompt_of(number: int) -> list[int]:
    return [3, 14, 15, number]


async def without_drafts(client: AsyncClient, form: OutputFormat | None = None) -> list[list[int]]:
    numbers = range(2 * len(WAYS))
    calls = (client.complete(prompt_of(number), sampling_of(number, form), OFF, format=form) for number in numbers)
    return [each.token_ids for each in await asyncio.gather(*calls)]


async def num_migrations(found: Pools) -> float:
    return (await found.figures())['paceline_migrations_total{server="target"}']


def target_flags(folder: Path, form: OutputFormat | None = None) -> tuple[str, ...]:
    """Of a target with a head, whose flags are the last two. Formats need a tokenizer that knows their characters."""
    write_head(folder / "head", model="tiny-32-a" if form is None else "tiny")
    model = UNLIKE_TARGET
    if form is not None:
        (folder / "model").mkdir()
        write_thinking_model(folder / "model")
        model = ("--model", f"{folder}/model", *SMALL_FLAGS)
    return (*model, "--check-integrity", "--draft-head", f"{folder}/head")


@pytest.mark.parametrize("fate", ["killed", "stopped", "told to end"])
async def test_generations_that_a_head_drafts_for_lose_no_token_with_their_target(tmp_path: Path, fate: str) -> None:
    async with pools(tmp_path, TARGETS, [], target_flags(tmp_path)) as found:
        expected = await without_drafts(found.client)
        streams = await streams_under_way(found.client)
        before = streams.num_rounds_of_head()
        service = found.servers.by_name[await found.busiest("target")]
        if fate == "killed":
            service.kill()
        elif fate == "stopped":
            # For so long that it counts as gone.
            service.process.send_signal(signal.SIGSTOP)
        else:
            assert await asyncio.to_thread(service.stop) == 0
        assert await streams.end() == expected
        # One that is told to end waits for its generations, though not for ever.
        assert await num_migrations(found) > 0 or fate == "told to end"
        after = streams.num_rounds_of_head()
        assert all(now > then > 0 for now, then in zip(after, before, strict=True))
        await wait_until_idle(found)


@pytest.mark.parametrize("form", [None, FORMAT], ids=["any text", "a format"])
@pytest.mark.parametrize("victim", ["with a head", "without a head"])
async def test_generations_move_between_a_target_with_a_head_and_one_without(
    tmp_path: Path, victim: str, form: OutputFormat | None
) -> None:
    flags = target_flags(tmp_path, form)
    async with pools(tmp_path, ["with a head"], [], flags) as found:
        other = found.servers.start("target_server", "without a head", *flags[:-2])
        await asyncio.to_thread(other.wait_serving)
        found.servers.list("targets", "with a head", "without a head")
        await found.until("target", "without a head", 1)
        expected = await without_drafts(found.client, form)
        streams = await streams_under_way(found.client, form, at_both=True)
        found.servers.by_name[victim].kill()
        assert await streams.end() == expected
        assert await num_migrations(found) > 0
        after = streams.num_rounds_of_head()
        assert (0 in after) == (victim == "with a head")
        await wait_until_idle(found)


async def wait_until_idle(found: Pools) -> None:
    """Waits until the targets that live have no block in use."""
    for name, each in found.servers.by_name.items():
        if name != "coordinator" and await asyncio.to_thread(is_serving, each.address):
            await wait_until_free(each)
