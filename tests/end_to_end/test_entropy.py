"""The entropy rule: fewer drafts where the draft model is unsure, the same output, and nothing left to chance."""

import asyncio
import itertools
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.serving.entropy import EntropyStop
from paceline.speculation_params import Bounds, Drafter, DraftMode, EntropyAdaptive, Rule, SpeculationParams
from tests.end_to_end.tiny_oracle import adjusted_after, oracle_ids
from tests.services import Trio
from tests.slices import slice_of

pytestmark = pytest.mark.slow

TARGET, DRAFT = "tiny-32-a", "tiny-32-b"
PROMPT = [3, 16, 12]
PLAIN = SpeculationParams(enabled=False)
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=32, temperature=0.8, ignore_eos=True)
RULES = {
    "0 to 8": EntropyAdaptive(),
    "2 to 6, without memory": EntropyAdaptive(Bounds(2, 6), 0.0),
    "1 to 12, with a long memory": EntropyAdaptive(Bounds(1, 12), 0.9),
    "always 3": EntropyAdaptive(Bounds(3, 3)),
}
EVERY_RULE = pytest.mark.parametrize("name", RULES)


@pytest.mark.parametrize(
    ("bounds", "entropy", "k"),
    [
        (Bounds(0, 8), 0.0, 8), (Bounds(0, 8), 1.0, 0), (Bounds(0, 8), 0.5, 4), (Bounds(0, 8), 0.7, 2),
        (Bounds(2, 6), 1.0, 2), (Bounds(2, 6), 0.0, 6), (Bounds(2, 6), 0.3, 5), (Bounds(2, 6), 0.4, 4),
        (Bounds(5, 5), 0.8, 5), (Bounds(1, 16), 0.9, 2),
    ],
)  # fmt: skip
def test_k_is_the_most_less_the_range_times_the_entropy(bounds: Bounds, entropy: float, k: int) -> None:
    stop = EntropyStop(EntropyAdaptive(bounds), entropy)
    assert [stop.allows(num_drafted) for num_drafted in range(17)] == [True] * k + [False] * (17 - k)


def test_smoothed_entropy_is_an_average_that_forgets() -> None:
    stop = EntropyStop(EntropyAdaptive(Bounds(0, 8), 0.75), 0.4)
    for entropy in (1.0, 0.0, 0.2):
        stop.see(entropy)
    first = 0.75 * 0.4 + 0.25
    assert stop.emas == pytest.approx([first, 0.75 * first, 0.75 * 0.75 * first + 0.25 * 0.2])
    assert stop.entropies == [1.0, 0.0, 0.2]


def test_without_memory_the_last_entropy_alone_decides() -> None:
    stop = EntropyStop(EntropyAdaptive(Bounds(0, 8), 0.0), 1.0)
    assert not stop.allows(0)
    stop.see(0.25)
    assert stop.allows(5)
    assert not stop.allows(6)


def by_entropy(length: EntropyAdaptive, **more: object) -> SpeculationParams:
    return SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=length, **more)


async def complete(trio: Trio, *requests: tuple[SamplingParams, SpeculationParams]) -> list[Completion]:
    """All at once."""
    async with AsyncClient(trio.address) as client:
        return await asyncio.gather(*(client.complete(PROMPT, *request) for request in requests))


def predict(sampling: SamplingParams, rule: EntropyAdaptive) -> tuple[str, list[int]]:
    """Greedy rounds as they must go, by the two models' own logits: origins, and drafts per position."""
    chain = oracle_ids(TARGET, PROMPT, sampling)
    bounds, ema, done, origins, proposed = rule.bounds, 0.0, 1, "T", [0] * rule.bounds.max
    while done < len(chain):
        drafts: list[int] = []
        emas: list[float] = []
        while len(drafts) < min(bounds.max, len(chain) - done - 1):
            logits = adjusted_after(DRAFT, sampling, PROMPT, chain[:done] + drafts)
            entropy = stats.entropy(softmax(logits)) / np.log(len(logits))
            emas.append(rule.ema_beta * (emas[-1] if emas else ema) + (1 - rule.ema_beta) * entropy)
            if len(drafts) >= round(bounds.max - (bounds.max - bounds.min) * emas[-1]):
                break
            drafts.append(int(logits.argmax()))
            proposed[len(drafts) - 1] += 1
        accepted = next((i for i, token in enumerate(drafts) if token != chain[done + i]), len(drafts))
        if emas:
            # Over decided positions: the accepted, and the one that was not or where drafting stopped.
            ema = emas[min(accepted + 1, len(emas)) - 1]
        origins += "A" * accepted + ("T" if not drafts else "B" if accepted == len(drafts) else "R")
        done += accepted + 1
    return origins, proposed


CONTROLLED = replace(GREEDY, frequency_penalty=0.4, logit_bias={7: 6.0, 12: 5.0})


SAMPLINGS = {"free": GREEDY, "controlled": CONTROLLED}


@pytest.mark.parametrize(
    ("controls", "name"),
    slice_of(itertools.product(SAMPLINGS, RULES), lambda pair: pair[0] == "free" or pair[1] == "0 to 8"),
)
async def test_greedy_rounds_are_as_long_as_the_draft_models_own_entropies_say_and_change_no_output(
    controls: str, name: str, unlike_trio: Trio
) -> None:
    sampling = SAMPLINGS[controls]
    plain, adaptive = await complete(unlike_trio, (sampling, PLAIN), (sampling, by_entropy(RULES[name])))
    assert adaptive.token_ids == plain.token_ids
    origins, proposed = predict(sampling, RULES[name])
    assert adaptive.origins == origins
    assert adaptive.finish.speculation.proposed_per_position == np.trim_zeros(proposed, "b")


@EVERY_RULE
async def test_rounds_propose_within_the_bounds(name: str, unlike_trio: Trio) -> None:
    bounds = RULES[name].bounds
    done = await complete(unlike_trio, *((replace(SAMPLED, seed=s), by_entropy(RULES[name])) for s in range(4)))
    for completion in done:
        figures = completion.finish.speculation
        per_position = figures.proposed_per_position
        assert len(per_position) <= bounds.max
        # Where few tokens are left to generate, fewer are proposed: in so many rounds at most.
        for rounds in per_position[: bounds.min]:
            assert rounds >= figures.rounds - bounds.min
        if bounds.min > 0:
            assert per_position[0] >= figures.rounds - 1
    if bounds.min < bounds.max:
        lengths = done[0].finish.speculation.proposed_per_position
        assert lengths[0] > lengths[-1], "not all rounds are alike"


async def test_tokens_sampled_by_match_are_the_same_however_far_drafting_goes(unlike_trio: Trio) -> None:
    sampling = replace(SAMPLED, seed=4)
    ways = [by_entropy(rule, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED) for rule in RULES.values()]
    done = await complete(unlike_trio, *((sampling, way) for way in ways))
    assert [completion.token_ids for completion in done] == [oracle_ids(TARGET, PROMPT, sampling)] * len(ways)


@pytest.mark.parametrize("name", slice_of(RULES, lambda name: name == "0 to 8"))
async def test_seeds_under_rejection_repeat_alone_and_eight_at_once(name: str, unlike_trio: Trio) -> None:
    requests = [(replace(SAMPLED, seed=seed), by_entropy(RULES[name], rule=Rule.REJECTION)) for seed in range(8)]
    together = await complete(unlike_trio, *requests)
    alone = [(await complete(unlike_trio, request))[0] for request in requests[:3]]
    for one, other in zip(alone, together, strict=False):
        assert (one.token_ids, one.origins) == (other.token_ids, other.origins)
    assert len({tuple(each.token_ids) for each in together}) == 8


async def test_a_certain_draft_model_proposes_the_most_and_an_unsure_one_fewer(unlike_trio: Trio) -> None:
    rule = EntropyAdaptive(Bounds(0, 8), 0.0)
    rounds = 6
    for sampling in (replace(GREEDY, max_tokens=1 + 9 * rounds), replace(SAMPLED, max_tokens=1 + 9 * rounds, seed=1)):
        certain = replace(sampling, logit_bias={17: 100.0})
        done = await complete(unlike_trio, (certain, by_entropy(rule)), (sampling, by_entropy(rule)))
        sure, unsure = (completion.finish.speculation for completion in done)
        assert sure.proposed_per_position == [rounds] * 8
        assert done[0].token_ids == [17] * len(done[0].token_ids)
        assert unsure.proposed / unsure.rounds < 7
