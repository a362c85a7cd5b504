"""The theorem, through the real services: the output follows the target's own distribution.

Two tiny models over 32 ids, so that the exact distribution of the first four tokens can be written
down: transformers' model with the same weights, at float64, for each of 32^3 prefixes.

Each set of samples is checked in 15 ways. A check fails where the distribution would be as far off
once in 15 million sets, so a right build fails one run in a million at most; in fact seeds and
k are fixed here, and a machine that passes once passes always.
"""

import asyncio
import collections
import functools
import itertools
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import chi2
from transformers import LlamaForCausalLM

from paceline.client import AsyncClient, Completion
from paceline.engine.models.dummy import dummy_config, make_dummy
from paceline.sampling_params import MAX_SAMPLES, SamplingParams
from paceline.speculation_params import Drafter, DraftMode, Rule, SpeculationParams
from tests.conftest import PARALLEL_DRAFT, SMALL_FLAGS, UNLIKE_DRAFT, UNLIKE_TARGET
from tests.hosted import Host
from tests.other_vocabulary import write_words
from tests.services import Trio

TARGET = "tiny-32-a"
SUPPORTS = {
    "truncated": ("PACELINE_DRAFT_SUPPORT_SIZE=8",),
    "full": ("PACELINE_DRAFT_SUPPORT_SIZE=32", "PACELINE_DRAFT_SUPPORT_MASS=1.0"),
}
# After it the two models agree better than elsewhere: all ways through a round are taken often.
PROMPT = [3, 16, 12]
NUM_DRAFTS = 3
NUM_TOKENS = 5
NUM_EXACT = 4
NUM_CHECKS = 15
LIMIT = 1e-6 / NUM_CHECKS
REJECTION = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=NUM_DRAFTS, rule=Rule.REJECTION)
COUPLED = SpeculationParams(
    drafter=Drafter.MODEL, num_speculative_tokens=NUM_DRAFTS, rule=Rule.MATCH, draft_mode=DraftMode.COUPLED
)


@dataclass(frozen=True)
class Samples:
    tokens: NDArray[np.int64]  # [num_samples, NUM_TOKENS]
    origins: list[str]


def start_pair(host: Host, support: str) -> Trio:
    return host.trio(UNLIKE_TARGET, (*UNLIKE_DRAFT, *SUPPORTS[support]))


@pytest.fixture(scope="module")
def truncated(host: Host) -> Trio:
    return start_pair(host, "truncated")


@pytest.fixture(scope="module")
def parallel(host: Host) -> Trio:
    """The draft proposes all its tokens in one forward pass."""
    return host.trio(UNLIKE_TARGET, (*PARALLEL_DRAFT, *SUPPORTS["truncated"]))


@pytest.fixture(scope="module")
def narrow(host: Host) -> Trio:
    """The draft's head knows the first tokens and those of its context."""
    flags = (
        *UNLIKE_DRAFT,
        "--dtype",
        "bfloat16",
        "--quantization",
        "int8",
        "PACELINE_DRAFT_VOCAB_SIZE=16",
        *SUPPORTS["truncated"],
    )
    return host.trio(UNLIKE_TARGET, flags)


@pytest.fixture(scope="module")
def translated(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Trio:
    """The draft has another tokenizer, which lacks some of the target's tokens."""
    folder = tmp_path_factory.mktemp("translated") / "draft"
    write_words(folder)
    return host.trio(UNLIKE_TARGET, ("--model", str(folder), *SMALL_FLAGS, *SUPPORTS["truncated"]))


@pytest.fixture(scope="module")
def full(host: Host) -> Trio:
    return start_pair(host, "full")


async def sample(trio: Trio, speculation: SpeculationParams, num_samples: int) -> Samples:
    """The first tokens after PROMPT, seed after seed, 128 generations at once."""
    sampling = SamplingParams(max_tokens=NUM_TOKENS, temperature=1.0, ignore_eos=True, n=MAX_SAMPLES)
    results: list[list[Completion]] = [[]] * (num_samples // MAX_SAMPLES)
    seeds = iter(range(len(results)))

    async def work() -> None:
        for seed in seeds:
            results[seed] = await client.complete_all(PROMPT, replace(sampling, seed=seed), speculation)

    async with AsyncClient(trio.address) as client:
        await asyncio.gather(work(), work())
    done = list(itertools.chain.from_iterable(results))
    return Samples(np.array([each.token_ids for each in done]), [each.origins for each in done])


@functools.cache
def oracle() -> LlamaForCausalLM:
    """The target model as transformers computes it, at float64."""
    model = LlamaForCausalLM(dummy_config(TARGET)).double().eval()
    _, tensors = make_dummy(TARGET, torch.float32)
    missing = model.load_state_dict(tensors, strict=False)
    assert missing.unexpected_keys == []
    assert missing.missing_keys == ["lm_head.weight"]  # tied
    return model


@torch.inference_mode()
def logits_after(prefixes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Distribution of the token after PROMPT and each prefix: [num_prefixes, 32]."""
    rows = np.concatenate([np.tile(PROMPT, (len(prefixes), 1)), prefixes], axis=1)
    return torch.cat([oracle()(part).logits[:, -1] for part in torch.from_numpy(rows).split(4096)]).numpy()


@functools.cache
def logits_after_all(length: int) -> NDArray[np.float64]:
    """After every prefix of this length, in order: [32 ** length, 32]."""
    return logits_after(np.array(list(itertools.product(range(32), repeat=length)), dtype=np.int64))


@functools.cache
def joint_distribution(temperature: float) -> NDArray[np.float64]:
    """Joint distribution of the first four tokens: [32, 32, 32, 32]."""
    joint = np.ones(1)
    for length in range(NUM_EXACT):
        joint = (joint[:, None] * softmax(logits_after_all(length) / temperature, axis=1)).reshape(-1)
    return joint.reshape((32,) * NUM_EXACT)


def check_joint(samples: Samples, positions: tuple[int, ...], temperature: float) -> float:
    """Chi-square of the tokens at these positions against their exact distribution; cells too rare for it are pooled."""
    others = tuple(set(range(NUM_EXACT)) - set(positions))
    expected = joint_distribution(temperature).sum(axis=others).reshape(-1) * len(samples.tokens)
    cells = np.ravel_multi_index(tuple(samples.tokens[:, positions].T), (32,) * len(positions))
    counts = np.bincount(cells, minlength=len(expected))
    rare = expected < 5
    counts = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    counts, expected = counts[expected > 0], expected[expected > 0]
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1))


def check_after_drafts(samples: Samples, num_accepted: int, temperature: float) -> dict[str, float]:
    """The token after this many accepted drafts of the second round, given the earlier ones.

    Whether the drafts before it were accepted says nothing of this token, so it follows the
    exact distribution of its own prefix; the sums over samples have known means and variances. Counts
    find a distribution that is wrong for an id, likelihoods a token judged in a context not its own.
    """
    chosen = np.array([origins[1:].startswith("A" * num_accepted) for origins in samples.origins])
    tokens, position = samples.tokens[chosen], 1 + num_accepted
    distribution = softmax(logits_after(tokens[:, :position]) / temperature, axis=1)  # [num_chosen, 32]
    difference = np.bincount(tokens[:, position], minlength=32) - distribution.sum(axis=0)
    covariance = np.diag(distribution.sum(axis=0)) - distribution.T @ distribution
    # The differences sum to 0: the rarest id is left out, and all that are too rare with it.
    common = (distribution.sum(axis=0) > max(5, distribution.sum(axis=0).min())).nonzero()[0]
    square = difference[common] @ np.linalg.solve(covariance[np.ix_(common, common)], difference[common])
    counts = float(chi2.sf(square, len(common))) if len(common) else 1.0
    log_distribution = np.log(distribution)
    mean = (distribution * log_distribution).sum(axis=1)
    variance = (distribution * log_distribution**2).sum(axis=1) - mean**2
    likelihood = (log_distribution[np.arange(len(tokens)), tokens[:, position]] - mean).sum() / np.sqrt(variance.sum())
    return {
        f"counts after {num_accepted}": counts,
        f"likelihood after {num_accepted}": float(chi2.sf(likelihood**2, 1)),
    }


def p_values(samples: Samples, temperature: float = 1.0) -> dict[str, float]:
    """How likely samples as far off as these would be, were this the distribution; one value a check."""
    exact = [(0,), (1,), (2,), (3,), (0, 1), (1, 2), (2, 3)]
    values = {f"joint {positions}": check_joint(samples, positions, temperature) for positions in exact}
    for num_accepted in range(NUM_DRAFTS + 1):
        values |= check_after_drafts(samples, num_accepted, temperature)
    assert len(values) == NUM_CHECKS
    return values


async def check_distribution(
    trio: Trio, speculation: SpeculationParams, num_samples: int, wrong_temperature: float
) -> None:
    samples = await sample(trio, speculation, num_samples)
    ways = collections.Counter("".join(samples.origins))
    assert min(ways[letter] for letter in "ARB") > num_samples / 60, ways
    values = p_values(samples)
    assert all(value > LIMIT for value in values.values()), values
    # The same samples do not fit a nearby distribution: the checks above had the power to fail.
    wrong = p_values(samples, wrong_temperature)
    assert sum(value < LIMIT for value in wrong.values()) >= NUM_CHECKS // 3, wrong


CASES = [
    pytest.param("truncated", REJECTION, id="rejection, truncated support"),
    pytest.param("parallel", COUPLED, id="match, coupled, parallel drafts"),
    pytest.param("full", replace(REJECTION, draft_temperature=1.5), id="rejection, draft at 1.5"),
    pytest.param("translated", REJECTION, id="rejection, another vocabulary"),
]
MORE_CASES = [
    pytest.param("full", REJECTION, id="rejection, full support"),
    pytest.param("truncated", COUPLED, id="match, coupled"),
    pytest.param("parallel", REJECTION, id="rejection, parallel drafts"),
    pytest.param("narrow", REJECTION, id="rejection, narrow head"),
    pytest.param("truncated", replace(REJECTION, draft_temperature=0.5), id="rejection, draft at 0.5"),
    pytest.param("translated", COUPLED, id="match, coupled, another vocabulary"),
    pytest.param("truncated", replace(COUPLED, draft_temperature=0.5), id="match, coupled, draft at 0.5"),
]


@pytest.mark.parametrize(("services", "speculation"), CASES)
async def test_output_follows_the_targets_distribution(
    request: pytest.FixtureRequest, services: str, speculation: SpeculationParams
) -> None:
    await check_distribution(request.getfixturevalue(services), speculation, 16 * MAX_SAMPLES, wrong_temperature=1.5)


@pytest.mark.slow
@pytest.mark.parametrize(("services", "speculation"), MORE_CASES)
async def test_output_follows_the_targets_distribution_in_2560_generations(
    request: pytest.FixtureRequest, services: str, speculation: SpeculationParams
) -> None:
    await check_distribution(request.getfixturevalue(services), speculation, 40 * MAX_SAMPLES, wrong_temperature=1.5)


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("services", "speculation"), CASES + MORE_CASES)
async def test_output_follows_the_targets_distribution_in_6400_generations(
    request: pytest.FixtureRequest, services: str, speculation: SpeculationParams
) -> None:
    await check_distribution(request.getfixturevalue(services), speculation, 100 * MAX_SAMPLES, wrong_temperature=1.25)
