"""The shapes of Llama-3.2 1B and 3B: head size, shared KV heads, scaled rotary frequencies, tied embeddings.

Each is the other's draft. Contexts reach far beyond the rotary scaling's original length.
"""

import asyncio

import numpy as np
import pytest

from paceline.client import AsyncClient
from paceline.engine.models.dummy import dummy_config
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, DraftMode, Rule, SpeculationParams
from tests.conftest import SMALL_FLAGS
from tests.end_to_end.tiny_oracle import model_logits
from tests.hosted import Host
from tests.services import Trio

SHAPES = {"1b": "tiny-llama-3.2-1b", "3b": "tiny-llama-3.2-3b"}
ORIGINAL_LENGTH = 64
PLAIN = SpeculationParams(enabled=False, rule=Rule.MATCH)
# A short prompt, one that passes the original length as it is answered, and one far beyond it.
PROMPTS = [np.random.default_rng(length).integers(1, 32, length).tolist() for length in (5, 50, 300)]

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("shape", SHAPES)]


@pytest.fixture
def trio(host: Host, shape: str) -> Trio:
    [other] = SHAPES.keys() - {shape}
    target, draft = (("--model", f"dummy:{SHAPES[name]}", *SMALL_FLAGS) for name in (shape, other))
    return host.trio(target, draft)


def drafted(drafter: Drafter, k: int, mode: DraftMode | None = None) -> SpeculationParams:
    return SpeculationParams(drafter=drafter, num_speculative_tokens=k, rule=Rule.MATCH, draft_mode=mode)


async def test_greedy_ids_are_those_of_transformers(trio: Trio, shape: str) -> None:
    assert dummy_config(SHAPES[shape]).rope_parameters["original_max_position_embeddings"] == ORIGINAL_LENGTH
    sampling = SamplingParams(max_tokens=24, ignore_eos=True)
    async with AsyncClient(trio.address) as client:
        for speculation in (PLAIN, drafted(Drafter.MODEL, 4)):
            for prompt in PROMPTS:
                done = await client.complete(prompt, sampling, speculation)
                # One forward pass says what each token must be behind those before it.
                rows = model_logits(SHAPES[shape], [*prompt, *done.token_ids])[len(prompt) - 1 : -1]
                assert done.token_ids == rows.argmax(axis=-1).tolist()


async def test_a_mixed_batch_gives_what_each_gives_alone(trio: Trio, shape: str) -> None:
    ways = [
        PLAIN,
        drafted(Drafter.MODEL, 0),
        drafted(Drafter.MODEL, 1),
        drafted(Drafter.MODEL, 4, DraftMode.COUPLED),
        drafted(Drafter.HIERARCHICAL, 4, DraftMode.COUPLED),
        drafted(Drafter.NGRAM, 3),
        drafted(Drafter.SUFFIX, 5),
        drafted(Drafter.HYBRID, 3),
    ]
    kinds = [
        (prompt, SamplingParams(max_tokens=24, temperature=temperature, seed=seed, ignore_eos=True))
        for seed, prompt in enumerate(PROMPTS)
        for temperature in (0.0, 0.8)
    ]
    async with AsyncClient(trio.address) as client:
        alone = [(await client.complete(*kind, PLAIN)).token_ids for kind in kinds]
        asked = [(number, way) for number in range(len(kinds)) for way in ways]
        done = await asyncio.gather(*(client.complete(*kinds[number], way) for number, way in asked))
    for (number, way), completion in zip(asked, done, strict=True):
        assert completion.token_ids == alone[number], (number, way)
    origins = "".join(completion.origins for completion in done)
    assert min(origins.count(letter) for letter in "TARB") > 0
