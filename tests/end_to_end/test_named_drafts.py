"""One coordinator with drafts of two models: a request may name one, and no token depends on which drafts."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import httpx2
import pytest

from paceline.client import AsyncClient
from paceline.errors import InvalidArgument
from paceline.results import Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, DraftLength, SpeculationParams
from tests.conftest import SMALL_FLAGS, UNLIKE_DRAFT, UNLIKE_TARGET
from tests.hosted import Host
from tests.services import Service, free_port, running, start_service

# That of the target, and another.
LIKE, UNLIKE = "dummy:tiny-32-a", "dummy:tiny-32-b"
PROMPT = [3, 14, 15]
GREEDY = SamplingParams(max_tokens=60, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.8, seed=5)
PLAIN = SpeculationParams(enabled=False)


@dataclass(frozen=True, slots=True)
class Drafts:
    """`like` is a process of its own; the addresses are the coordinator's."""

    like: Service
    address: str
    metrics: str


@pytest.fixture(scope="module")
def drafts(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drafts]:
    target, unlike = host.start("target_server", *UNLIKE_TARGET), host.start("draft_server", *UNLIKE_DRAFT)
    metrics = f"127.0.0.1:{free_port()}"
    with contextlib.ExitStack() as stack:
        like = start_service("draft_server", tmp_path_factory.mktemp("like"), "--model", LIKE, *SMALL_FLAGS)
        stack.enter_context(running(like))
        addresses = ("--target", target.address, "--draft", f"{like.address},{unlike.address}")
        coordinator = host.start("coordinator", *addresses, "--metrics", metrics)
        stack.callback(lambda: [each.stop() for each in (coordinator, unlike, target)])
        asyncio.run(until_they_draft(coordinator.address, LIKE, UNLIKE))
        yield Drafts(like, coordinator.address, metrics)


def named(draft: str, length: DraftLength = 3, drafter: Drafter = Drafter.MODEL) -> SpeculationParams:
    return SpeculationParams(drafter=drafter, num_speculative_tokens=length, draft_model=draft)


def drafted_by(done: Completion) -> set[str]:
    return {trace.draft_model for trace in done.traces} - {""}


async def until_they_draft(address: str, *names: str) -> None:
    """The coordinator begins to serve with the first draft."""
    async with AsyncClient(address) as client:
        for name in names:
            for _ in range(200):
                done = await client.complete(PROMPT, replace(GREEDY, max_tokens=4), named(name), trace=True)
                if drafted_by(done):
                    break
                await asyncio.sleep(0.05)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", [Drafter.MODEL, Drafter.HIERARCHICAL, Drafter.HYBRID], ids=lambda each: each.value)
@pytest.mark.parametrize("length", [3, Bounds(1, 4)], ids=["fixed", "adaptive"])
async def test_the_named_draft_proposes_and_changes_no_token(
    drafts: Drafts, sampling: SamplingParams, drafter: Drafter, length: DraftLength
) -> None:
    async with AsyncClient(drafts.address) as client:
        plain = await client.complete(PROMPT, sampling, PLAIN)
        for name in (LIKE, UNLIKE):
            done = await client.complete(PROMPT, sampling, named(name, length, drafter), trace=True)
            assert done.token_ids == plain.token_ids
            # Whether an adaptive hybrid asks a model at all depends on times.
            asks_a_model = drafter is not Drafter.HYBRID or length == 3
            assert drafted_by(done) == {name} or (not asks_a_model and not drafted_by(done))


async def test_without_a_name_each_draft_is_counted_by_its_own(drafts: Drafts) -> None:
    """Which one is used depends on times, and is tested with simulated ones (`tests/coordinator/policy`)."""
    name = "paceline_draft_tokens_total"
    async with AsyncClient(drafts.address) as client, httpx2.AsyncClient(timeout=60) as http:

        async def counts() -> dict[str, float]:
            lines = (await http.get(f"http://{drafts.metrics}/metrics")).text.splitlines()
            found = dict(line.rsplit(" ", 1) for line in lines if line.startswith(name))
            return {
                each: float(found.get(f'{name}{{draft_model="{each}",source="model"}}', 0.0)) for each in (LIKE, UNLIKE)
            }

        plain = await client.complete(PROMPT, SAMPLED, PLAIN)
        before, traced = await counts(), Counter[str]()
        for _ in range(6):
            done = await client.complete(PROMPT, SAMPLED, named("", Bounds(1, 4)), trace=True)
            assert done.token_ids == plain.token_ids
            assert done.finish is not None
            for trace in done.traces:
                traced[trace.draft_model] += len(trace.proposed)
        after = await counts()
    assert set(traced) <= {LIKE, UNLIKE, ""}
    assert sum(traced.values()) > 0
    assert {each: after[each] - before[each] for each in (LIKE, UNLIKE)} == {
        each: traced[each] for each in (LIKE, UNLIKE)
    }


async def test_beams_use_the_named_draft(drafts: Drafts) -> None:
    sampling = SamplingParams(max_tokens=12, beams=3)
    async with AsyncClient(drafts.address) as client:
        plain = await client.complete(PROMPT, sampling, PLAIN)
        found = [await client.complete(PROMPT, sampling, named(name)) for name in (LIKE, UNLIKE)]
    assert [each.token_ids for each in found] == [plain.token_ids] * 2
    like, unlike = (each.finish.speculation for each in found if each.finish is not None)
    assert like.accepted > unlike.accepted


REFUSED = {
    "a model that is not there": (named("none"), f"draft_model is 'none'; it must be one of {LIKE}, {UNLIKE}"),
    "a drafter without a model": (
        named(LIKE, drafter=Drafter.NGRAM),
        f"draft_model is '{LIKE}'; it must be left out with drafter ngram, which asks no draft model",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_a_name_that_can_not_draft_is_refused(drafts: Drafts, name: str) -> None:
    speculation, said = REFUSED[name]
    async with AsyncClient(drafts.address) as client:
        with pytest.raises(InvalidArgument) as caught:
            await client.complete(PROMPT, GREEDY, speculation)
    assert (caught.value.field, str(caught.value)) == ("draft_model", said)


async def test_a_coordinator_without_drafts_refuses_any_name(host: Host) -> None:
    target = host.start("target_server", *UNLIKE_TARGET)
    coordinator = host.start("coordinator", "--target", target.address, "--draft", "none")
    async with AsyncClient(coordinator.address) as client:
        with pytest.raises(
            InvalidArgument, match=r"^draft_model is 'x'; it must be left out: there is no draft server$"
        ):
            await client.complete(PROMPT, GREEDY, named("x"))
    for each in (coordinator, target):
        each.stop()


async def test_a_named_draft_that_dies_costs_its_drafts_alone(drafts: Drafts) -> None:
    """The last test: what it kills stays away."""
    sampling = SamplingParams(max_tokens=300, ignore_eos=True)
    tokens, drafts_used = list[int](), list[str]()
    async with AsyncClient(drafts.address) as client:
        plain = await client.complete(PROMPT, sampling, PLAIN)
        async for chunk in client.stream(PROMPT, sampling, named(LIKE), trace=True):
            tokens += chunk.token_ids
            assert chunk.trace is not None
            drafts_used.append(chunk.trace.draft_model)
            if len(drafts_used) == 5:
                drafts.like.kill()
        # Its name is known all the same.
        later = await client.complete(PROMPT, GREEDY, named(LIKE), trace=True)
        unnamed = await client.complete(PROMPT, GREEDY, named("", Bounds(1, 4)), trace=True)
    assert tokens == plain.token_ids
    assert {LIKE} < set(drafts_used) <= {LIKE, ""}
    assert drafts_used[-1] == ""
    assert (later.token_ids, unnamed.token_ids) == (plain.token_ids[:60], plain.token_ids[:60])
    assert (drafted_by(later), drafted_by(unnamed)) == (set(), {UNLIKE})
