"""Drafts of models with other tokenizers change no token, and are right as often as the models agree."""

import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from paceline.client import AsyncClient
from paceline.output_format import OutputFormat
from paceline.results import Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, DraftLength, EntropyAdaptive, Rule, SpeculationParams
from tests.byte_level import TEXT
from tests.conftest import SMALL_FLAGS
from tests.end_to_end.test_named_drafts import until_they_draft
from tests.hosted import Host, RefusedStart
from tests.other_vocabulary import write_other, write_renumbered, write_target

# With a token at its beginning.
PROMPT = TEXT
PLAIN = SpeculationParams(enabled=False)
GREEDY = SamplingParams(max_tokens=48, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=0.8, seed=7)
DRAFTS = {"renumbered": write_renumbered, "other": write_other}


@dataclass(frozen=True, slots=True)
class Pair:
    address: str
    draft: str


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("target")
    write_target(folder)
    return folder


@pytest.fixture(scope="module", params=DRAFTS)
def pair(request: pytest.FixtureRequest, host: Host, target: Path, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp("drafts") / request.param
    DRAFTS[request.param](target, folder)
    trio = host.trio(("--model", str(target), *SMALL_FLAGS), ("--model", str(folder), *SMALL_FLAGS))
    return Pair(trio.address, request.param)


def model(length: DraftLength, **fields: object) -> SpeculationParams:
    return SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=length, **fields)  # type: ignore[arg-type]


def acceptance(done: Completion) -> float:
    assert done.finish is not None
    counts = done.finish.speculation
    assert counts.proposed
    return counts.accepted / counts.proposed


SPECULATION = {
    "k=1": model(1),
    "k=8": model(8),
    "adaptive": model(Bounds(1, 8)),
    "entropy": model(EntropyAdaptive(Bounds(1, 8))),
    "hierarchical": SpeculationParams(drafter=Drafter.HIERARCHICAL, num_speculative_tokens=4),
    "hybrid": SpeculationParams(num_speculative_tokens=Bounds(1, 8)),
}
SAMPLING = {
    "greedy": GREEDY,
    "sampled": SAMPLED,
    "with all parameters": replace(
        SAMPLED, top_p=0.9, top_k=40, repetition_penalty=1.1, frequency_penalty=0.5, min_tokens=8, ignore_eos=False
    ),
}


@pytest.mark.parametrize(
    ("speculation", "sampling"),
    [
        ("k=1", "greedy"),
        ("adaptive", "greedy"),
        ("k=8", "sampled"),
        ("hierarchical", "sampled"),
        ("entropy", "with all parameters"),
        ("hybrid", "with all parameters"),
    ],
)
async def test_no_token_depends_on_the_drafts(pair: Pair, speculation: str, sampling: str) -> None:
    async with AsyncClient(pair.address) as client:
        plain = await client.complete(PROMPT, SAMPLING[sampling], PLAIN, raw=True)
        done = await client.complete(PROMPT, SAMPLING[sampling], SPECULATION[speculation], raw=True)
    assert done.token_ids == plain.token_ids
    if pair.draft == "renumbered" and speculation != "hybrid":
        # By the target's ids, positions and noise.
        assert acceptance(done) == 1


async def test_a_model_that_agrees_is_never_rejected(pair: Pair) -> None:
    async with AsyncClient(pair.address) as client:
        done = await client.complete(PROMPT, SAMPLED, model(4, rule=Rule.REJECTION), raw=True)
    assert (acceptance(done) == 1) == (pair.draft == "renumbered")


@pytest.mark.parametrize("temperature", [0.0, 0.8])
async def test_a_format_cuts_drafts_and_changes_no_token(pair: Pair, temperature: float) -> None:
    sampling = SamplingParams(max_tokens=48, temperature=temperature, seed=7)
    wanted = OutputFormat(regex="(?s:.{20,40})[.]")
    async with AsyncClient(pair.address) as client:
        plain = await client.complete(PROMPT, sampling, PLAIN, raw=True, format=wanted)
        for speculation in (model(4), model(Bounds(1, 8))):
            done = await client.complete(PROMPT, sampling, speculation, raw=True, format=wanted)
            assert done.token_ids == plain.token_ids
            assert acceptance(done) > 0 or pair.draft == "other"


async def test_a_drawn_draft_that_the_format_forbids_is_rejected(pair: Pair) -> None:
    sampling, wanted = SamplingParams(max_tokens=48, temperature=1.5), OutputFormat(regex="[a-m]{20}")
    async with AsyncClient(pair.address) as client:
        for length in (4, Bounds(1, 8)):
            done = await client.complete(PROMPT, sampling, model(length, rule=Rule.REJECTION), raw=True, format=wanted)
            assert re.fullmatch(wanted.regex, done.text)
            assert acceptance(done) < 1


async def test_samples_and_beams_are_the_same(pair: Pair) -> None:
    async with AsyncClient(pair.address) as client:
        for sampling in (replace(SAMPLED, n=3), SamplingParams(max_tokens=12, beams=3)):
            plain = await client.complete_all(PROMPT, sampling, PLAIN, raw=True)
            done = await client.complete_all(PROMPT, sampling, model(3), raw=True)
            assert [each.token_ids for each in done] == [each.token_ids for each in plain]


async def test_lists_that_the_draft_model_can_not_follow_cost_its_drafts_alone(pair: Pair) -> None:
    async with AsyncClient(pair.address) as client:
        says = (await client.tokenize(" says", raw=True, add_special_tokens=False))[0]
        sampling = replace(GREEDY, allowed_token_ids=(says,), max_tokens=8)
        done = await client.complete(PROMPT, sampling, model(3), raw=True)
        later = await client.complete(PROMPT, GREEDY, model(3), raw=True)
    assert done.token_ids == [says] * 8
    assert later.finish is not None
    assert later.finish.speculation.proposed


async def test_drafts_of_several_tokenizers_share_a_coordinator(
    host: Host, target: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("mixed") / "draft"
    write_renumbered(target, folder)
    models = [("--model", str(each), *SMALL_FLAGS) for each in (target, folder)]
    server = host.start("target_server", *models[0])
    drafts = [host.start("draft_server", *each) for each in models]
    coordinator = host.start(
        "coordinator", "--target", server.address, "--draft", ",".join(each.address for each in drafts)
    )
    await until_they_draft(coordinator.address, str(target), str(folder))
    async with AsyncClient(coordinator.address) as client:
        plain = await client.complete(PROMPT, SAMPLED, PLAIN, raw=True)
        for length in (4, Bounds(1, 8)):
            for draft in (str(target), str(folder)):
                speculation = model(length, draft_model=draft)
                done = await client.complete(PROMPT, SAMPLED, speculation, raw=True, trace=True)
                assert done.token_ids == plain.token_ids
                assert {trace.draft_model for trace in done.traces} == {"", draft}
                assert acceptance(done) == 1
    for each in (coordinator, *drafts, server):
        each.stop()


async def test_a_draft_that_is_started_again_drafts_again(host: Host, target: Path, tmp_path: Path) -> None:
    write_renumbered(target, tmp_path / "draft")
    flags = "--listen", f"unix:{tmp_path}/draft.sock", "--model", str(tmp_path / "draft"), *SMALL_FLAGS
    server = host.start("target_server", "--model", str(target), *SMALL_FLAGS)
    draft = host.start("draft_server", *flags)
    coordinator = host.start("coordinator", "--target", server.address, "--draft", f"unix:{tmp_path}/draft.sock")
    sampling, tokens, num_proposed = replace(SAMPLED, max_tokens=300), list[int](), list[int]()
    async with AsyncClient(coordinator.address) as client:
        plain = await client.complete(PROMPT, sampling, PLAIN, raw=True)
        async for chunk in client.stream(PROMPT, sampling, model(4), raw=True, trace=True):
            tokens += chunk.token_ids
            assert chunk.trace is not None
            num_proposed.append(len(chunk.trace.proposed))
            if len(num_proposed) == 5:
                draft.stop()
                draft = host.start("draft_server", *flags)
    assert tokens == plain.token_ids
    assert num_proposed[4] == num_proposed[-2] == 4
    for each in (coordinator, draft, server):
        each.stop()


def test_a_draft_without_a_common_token_is_refused(host: Host, target: Path) -> None:
    with pytest.raises(RefusedStart, match="another tokenizer than the target, and they have no token in common"):
        host.start_trio(("--model", str(target), *SMALL_FLAGS), ("--model", "dummy:tiny-32-a", *SMALL_FLAGS))
