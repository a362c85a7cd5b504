"""A draft for the draft through the real services: its text is that of the draft model alone, under every rule."""

import pytest

from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, DraftMode, Rule, SpeculationParams
from tests.conftest import TINY
from tests.hosted import Host
from tests.services import Trio

pytestmark = pytest.mark.slow

PROMPT = [11, 12, 13, 14, 15] * 4
# Of so few tokens even a random model repeats what the prompt has, and guesses are right now and then.
FEW = (11, 12, 13, 14, 15)
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True, allowed_token_ids=FEW)
SAMPLED = SamplingParams(max_tokens=40, ignore_eos=True, allowed_token_ids=FEW, temperature=0.7, seed=5)
WAYS = {
    "greedy": (GREEDY, {}),
    "coupled": (SAMPLED, {"rule": Rule.MATCH, "draft_mode": DraftMode.COUPLED}),
    "rejection": (SAMPLED, {"rule": Rule.REJECTION}),
}


async def complete(trio: Trio, sampling: SamplingParams, speculation: SpeculationParams) -> Completion:
    async with AsyncClient(trio.address) as client:
        return await client.complete(PROMPT, sampling, speculation, trace=True)


@pytest.mark.parametrize("k", [2, 4, 16])
@pytest.mark.parametrize("way", WAYS)
async def test_every_round_is_that_of_the_draft_model_alone(unlike_trio: Trio, way: str, k: int) -> None:
    sampling, fields = WAYS[way]
    alone, guessed = [
        await complete(unlike_trio, sampling, SpeculationParams(drafter=drafter, num_speculative_tokens=k, **fields))
        for drafter in (Drafter.MODEL, Drafter.HIERARCHICAL)
    ]
    assert guessed.token_ids == alone.token_ids
    drafts = [[[draft.token_id for draft in trace.proposed] for trace in done.traces] for done in (alone, guessed)]
    assert drafts[1] == drafts[0]
    assert {trace.drafter for trace in guessed.traces} == {"hierarchical", "none"}


@pytest.mark.parametrize("way", ["greedy", "coupled"])
async def test_adaptive_length_changes_no_output(unlike_trio: Trio, way: str) -> None:
    sampling, fields = WAYS[way]
    plain = await complete(unlike_trio, sampling, SpeculationParams(enabled=False))
    speculation = SpeculationParams(drafter=Drafter.HIERARCHICAL, num_speculative_tokens=Bounds(1, 8), **fields)
    guessed = await complete(unlike_trio, sampling, speculation)
    assert guessed.token_ids == plain.token_ids
    assert "hierarchical" in {trace.drafter for trace in guessed.traces}


@pytest.mark.parametrize("length", [4, Bounds(1, 8)], ids=str)
async def test_without_a_draft_server_ngrams_stand_in(host: Host, length: int | Bounds) -> None:
    target = host.trio(TINY, TINY).target
    coordinator = host.start("coordinator", "--draft", "none", "--target", target.address)
    alone = Trio(target, target, coordinator)  # type: ignore[arg-type]
    done = await complete(alone, GREEDY, SpeculationParams(drafter=Drafter.HIERARCHICAL, num_speculative_tokens=length))
    coordinator.stop()
    assert {trace.drafter for trace in done.traces} == {"ngram", "none"}
