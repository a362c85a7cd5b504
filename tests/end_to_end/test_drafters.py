"""Every drafter through the real services: the same output, and drafts that are accepted."""

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.drafters.ngram import NgramDrafter
from coordinator.drafters.ngram_table import NgramShape
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, DraftMode, EntropyAdaptive, Rule, SpeculationParams
from tests.conftest import TINY
from tests.coordinator.contexts import decide, make_context
from tests.draft_heads import write_head
from tests.hosted import Host
from tests.services import Trio, running, start_service
from tests.slices import slice_of

PROMPT = [11, 12, 13, 14, 15] * 4
# Of so few tokens even a random model repeats what the prompt has.
GREEDY = SamplingParams(max_tokens=50, ignore_eos=True, allowed_token_ids=(11, 12, 13, 14, 15))
SAMPLED = SamplingParams(max_tokens=50, ignore_eos=True, temperature=0.8, top_p=0.9, seed=5)
LENGTHS = {"fixed": 4, "adaptive": Bounds(0, 6), "entropy": EntropyAdaptive(Bounds(1, 6))}


@pytest.fixture(scope="module")
def trio(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    folder = tmp_path_factory.mktemp("drafters")
    write_head(folder / "head")
    servers = host.trio((*TINY, "--draft-head", str(folder / "head")), TINY)
    # As a user's own module, found where the coordinator was started: so this one is a process of its own.
    shutil.copy(Path(__file__).parents[2] / "examples" / "copy_drafter.py", folder / "my_drafter.py")
    flags = ("--draft", servers.draft.address, "--target", servers.target.address)
    coordinator = start_service("coordinator", folder, *flags, "--custom-drafter", "my_drafter:make_drafter")
    with running(coordinator):
        yield Trio(servers.draft, servers.target, coordinator)


@pytest.mark.parametrize(
    ("drafter", "length"),
    slice_of(
        itertools.product(Drafter, LENGTHS), lambda pair: pair[1] == "fixed" or pair == (Drafter.HYBRID, "adaptive")
    ),
    ids=str,
)
async def test_a_drafter_changes_no_output(trio: Trio, drafter: Drafter, length: str) -> None:
    speculation = SpeculationParams(drafter=drafter, num_speculative_tokens=LENGTHS[length])
    coupled = SpeculationParams(
        drafter=drafter, num_speculative_tokens=LENGTHS[length], rule=Rule.MATCH, draft_mode=DraftMode.COUPLED
    )
    async with AsyncClient(trio.address) as client:
        for sampling, with_drafts in ((GREEDY, speculation), (SAMPLED, coupled)):
            plain = await client.complete(PROMPT, sampling, SpeculationParams(enabled=False, rule=Rule.MATCH))
            drafted = await client.complete(PROMPT, sampling, with_drafts)
            assert drafted.token_ids == plain.token_ids
            assert drafted.finish is not None
            if length == "fixed" and sampling is GREEDY:
                assert drafted.finish.speculation.accepted > 0


@pytest.mark.parametrize("drafter", [Drafter.NGRAM, Drafter.HYBRID, Drafter.CUSTOM], ids=lambda drafter: drafter.value)
async def test_proposals_without_probabilities_pass_under_rejection(trio: Trio, drafter: Drafter) -> None:
    speculation = SpeculationParams(num_speculative_tokens=4, drafter=drafter, rule=Rule.REJECTION)
    async with AsyncClient(trio.address) as client:
        first = await client.complete(PROMPT, SAMPLED, speculation)
        again = await client.complete(PROMPT, SAMPLED, speculation)
    assert len(first.token_ids) == SAMPLED.max_tokens
    assert again.token_ids == first.token_ids


@pytest.mark.parametrize("drafter", Drafter, ids=lambda drafter: drafter.value)
async def test_a_prediction_goes_with_every_drafter(trio: Trio, drafter: Drafter) -> None:
    speculation = SpeculationParams(drafter=drafter, num_speculative_tokens=4)
    async with AsyncClient(trio.address) as client:
        plain = await client.complete(PROMPT, GREEDY, SpeculationParams(enabled=False))
        # It ends long before the output does.
        prediction = plain.token_ids[:7]
        done = await client.complete(PROMPT, GREEDY, speculation, prediction=prediction, trace=True)
    assert done.token_ids == plain.token_ids
    drafters = {trace.drafter for trace in done.traces}
    others = {Drafter.HYBRID: {"model", "ngram"}}.get(drafter, {drafter.value})
    assert "prediction" in drafters
    assert drafters & others


async def test_a_drafter_that_costs_nothing_takes_no_time_of_the_draft_server(trio: Trio) -> None:
    async with AsyncClient(trio.address) as client:
        done = await client.complete(PROMPT, GREEDY, SpeculationParams(num_speculative_tokens=4, drafter=Drafter.NGRAM))
    assert done.finish is not None
    assert done.finish.timing.draft_ms == 0
    assert done.finish.speculation.proposed > 0


async def test_ngrams_of_another_shape_change_no_output(host: Host) -> None:
    shape = NgramShape(12, (3,))
    servers = host.trio(TINY, TINY)
    flags = ("PACELINE_COORDINATOR_NGRAM_ORDERS=3", "PACELINE_COORDINATOR_NGRAM_WINDOW=12")
    coordinator = host.start("coordinator", "--draft", "none", "--target", servers.target.address, *flags)
    speculation = SpeculationParams(num_speculative_tokens=4, drafter=Drafter.NGRAM)
    async with AsyncClient(coordinator.address) as client:
        plain = await client.complete(PROMPT, GREEDY, SpeculationParams(enabled=False))
        drafted = await client.complete(PROMPT, GREEDY, speculation, trace=True)
    coordinator.stop()
    assert drafted.token_ids == plain.token_ids
    # Every round proposed what n-grams of this shape propose, and not what others would.
    context, others = make_context(PROMPT), 0
    for trace in drafted.traces:
        proposed = [draft.token_id for draft in trace.proposed]
        if context.num_generated > 0 and trace.drafter == "ngram":
            expected = await NgramDrafter(shape).propose(context, 4)
            assert proposed == expected.tokens[: len(proposed)]
            others += (await NgramDrafter().propose(context, 4)).tokens[: len(proposed)] != proposed
        decide(context, drafted.token_ids[context.num_generated :][: trace.num_accepted + 1])
    assert others > 0
