"""Log-probabilities: of the target, before temperature, the same however the tokens came about."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from scipy.special import log_softmax

from paceline.client import AsyncClient, Completion, TokenLogprobs
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, DraftMode, EntropyAdaptive, Rule, SpeculationParams
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.end_to_end.tiny_oracle import model_logits, oracle_logprobs
from tests.hosted import Host
from tests.services import Trio

TARGET = "tiny-32-a"
# Prompts here are longer than one prefill chunk of the target.
MAX_NUM_BATCHED_TOKENS = 32
PROMPT = [3, 1, 4, 1, 5]
LONG_PROMPT = [(7 * i * i + 3 * i + 1) % 32 for i in range(3 * MAX_NUM_BATCHED_TOKENS + 5)]
NUM_TOP = 5
# float32 against float64 through the whole model.
ORACLE_TOLERANCE = 1e-4
PLAIN = SpeculationParams(enabled=False, rule=Rule.MATCH)
GREEDY = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=NUM_TOP)
SAMPLED = {"max_tokens": 40, "ignore_eos": True, "logprobs": NUM_TOP, "temperature": 0.8, "seed": 21}
CONTROLS = {
    "repetition_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3, "logit_bias": {7: 2.5, 5: 40.0},
    "banned_token_ids": (5, 30, 31), "top_p": 0.9,
}  # fmt: skip
REQUESTS = {
    "greedy": GREEDY,
    "greedy, controlled": SamplingParams(max_tokens=40, ignore_eos=True, logprobs=NUM_TOP, **CONTROLS),
    "sampled": SamplingParams(**SAMPLED),
    "sampled, controlled": SamplingParams(**SAMPLED, **CONTROLS),
}
WAYS = {
    "k = 1": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=1, rule=Rule.MATCH),
    "k = 4": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH),
    "n-gram": SpeculationParams(num_speculative_tokens=4, drafter=Drafter.NGRAM, rule=Rule.MATCH),
    "drawn greedily": SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.GREEDY
    ),
    "by entropy": SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=EntropyAdaptive(), rule=Rule.MATCH),
}
REJECTION = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION)


@pytest.fixture(scope="module")
def unlike_trio(host: Host) -> Trio:
    """Two models that seldom agree, a target of small prefill chunks, and q on 8 of the 32 ids."""
    target = (*UNLIKE_TARGET, "--max-num-batched-tokens", str(MAX_NUM_BATCHED_TOKENS))
    return host.trio(target, (*UNLIKE_DRAFT, "PACELINE_DRAFT_SUPPORT_SIZE=8"))


async def complete(
    trio: Trio, sampling: SamplingParams, *speculations: SpeculationParams, prompt: list[int] = PROMPT
) -> list[Completion]:
    """All at once."""
    async with AsyncClient(trio.address) as client:
        return await asyncio.gather(*(client.complete(prompt, sampling, each) for each in speculations))


def flat(entries: list[TokenLogprobs]) -> np.ndarray:
    """[num_tokens, 1 + num_top]: the token's own first."""
    return np.array([[each.logprob, *each.top_logprobs] for each in entries])


def check_against(
    logprobs: np.ndarray, tokens: list[int], entries: list[TokenLogprobs], num_top: int = NUM_TOP
) -> None:
    """logprobs: [num_tokens, vocab_size], of each token's position."""
    assert len(entries) == len(tokens) == len(logprobs)
    for row, token, entry in zip(logprobs, tokens, entries, strict=True):
        assert entry.logprob == pytest.approx(row[token], abs=ORACLE_TOLERANCE)
        assert len(entry.top_token_ids) == len(set(entry.top_token_ids)) == num_top
        assert entry.top_logprobs == sorted(entry.top_logprobs, reverse=True)
        np.testing.assert_allclose(entry.top_logprobs, np.sort(row)[::-1][:num_top], atol=ORACLE_TOLERANCE)
        np.testing.assert_allclose(entry.top_logprobs, row[entry.top_token_ids], atol=ORACLE_TOLERANCE)


@pytest.mark.parametrize("name", REQUESTS)
async def test_logprobs_are_the_oracles_and_the_same_with_and_without_speculation(name: str, unlike_trio: Trio) -> None:
    plain, *others = await complete(unlike_trio, REQUESTS[name], PLAIN, *WAYS.values())
    logprobs = oracle_logprobs(TARGET, PROMPT, plain.token_ids, REQUESTS[name])
    check_against(logprobs, plain.token_ids, plain.logprobs)
    for way, other in zip(WAYS, others, strict=True):
        assert other.token_ids == plain.token_ids, way
        assert len(other.logprobs) == len(other.token_ids), way
        np.testing.assert_allclose(flat(other.logprobs), flat(plain.logprobs), rtol=0, atol=1e-5, err_msg=way)
        ranked = [[entry.top_token_ids for entry in each.logprobs] for each in (other, plain)]
        assert ranked[0] == ranked[1], way
    assert any("A" in other.origins for other in others)
    assert any("R" in other.origins for other in others)


async def test_greedy_tokens_are_the_likeliest_of_their_positions(unlike_trio: Trio) -> None:
    [completion] = await complete(unlike_trio, GREEDY, WAYS["k = 4"])
    assert [entry.top_token_ids[0] for entry in completion.logprobs] == completion.token_ids
    assert [entry.top_logprobs[0] for entry in completion.logprobs] == [entry.logprob for entry in completion.logprobs]


async def test_each_piece_brings_one_logprob_a_token(unlike_trio: Trio) -> None:
    async with AsyncClient(unlike_trio.address) as client:
        async for chunk in client.stream(PROMPT, REQUESTS["sampled"], REJECTION):
            assert len(chunk.logprobs) == len(chunk.token_ids)


async def test_logprobs_end_with_the_text_where_a_stop_token_cuts_a_round(tiny_trio: Trio) -> None:
    """Draft and target are one model, so the stop stands among accepted drafts and cuts off what is behind it."""
    free = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1)
    [whole] = await complete(tiny_trio, free, PLAIN)
    at = next(i for i in range(7, 11) if whole.token_ids.index(whole.token_ids[i]) == i and i % 5 != 0)
    stopped = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=1, stop_token_ids=(whole.token_ids[at],))
    [cut] = await complete(tiny_trio, stopped, WAYS["k = 4"])
    assert cut.token_ids == whole.token_ids[: at + 1]
    np.testing.assert_allclose(flat(cut.logprobs), flat(whole.logprobs)[: at + 1], rtol=0, atol=1e-5)


async def test_no_top_tokens_and_no_logprobs_are_different_wishes(unlike_trio: Trio) -> None:
    for logprobs, length in ((0, 8), (None, 0)):
        sampling = SamplingParams(max_tokens=8, ignore_eos=True, logprobs=logprobs)
        for completion in await complete(unlike_trio, sampling, PLAIN, WAYS["k = 4"]):
            assert len(completion.logprobs) == length
            assert all(entry.top_token_ids == entry.top_logprobs == [] for entry in completion.logprobs)
            assert completion.prompt_logprobs == []


@pytest.mark.parametrize("controls", [{}, CONTROLS], ids=["free", "controlled"])
async def test_logprobs_under_rejection_are_the_oracles_of_the_text_that_came(
    controls: dict[str, object], unlike_trio: Trio
) -> None:
    origins = ""
    for seed in range(6):
        sampling = SamplingParams(**{**SAMPLED, **controls, "seed": seed})
        speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=1 + seed % 3, rule=Rule.REJECTION)
        [completion] = await complete(unlike_trio, sampling, speculation)
        logprobs = oracle_logprobs(TARGET, PROMPT, completion.token_ids, sampling)
        check_against(logprobs, completion.token_ids, completion.logprobs)
        origins += completion.origins
    assert min(origins.count(letter) for letter in "ARB") >= 3, "every way to a token was taken"


async def test_logprobs_under_rejection_agree_with_scoring_the_same_text(unlike_trio: Trio) -> None:
    [completion] = await complete(unlike_trio, REQUESTS["sampled"], REJECTION)
    score = SamplingParams(max_tokens=1, ignore_eos=True, prompt_logprobs=NUM_TOP)
    [scored] = await complete(unlike_trio, score, PLAIN, prompt=PROMPT + completion.token_ids)
    again = scored.prompt_logprobs[len(PROMPT) - 1 :]
    np.testing.assert_allclose(flat(again), flat(completion.logprobs), rtol=0, atol=1e-4)


@pytest.mark.parametrize("speculation", [PLAIN, REJECTION], ids=["plain", "speculating"])
@pytest.mark.parametrize("prompt", [PROMPT, LONG_PROMPT, LONG_PROMPT[:MAX_NUM_BATCHED_TOKENS], [7, 8]], ids=len)
async def test_prompt_logprobs_are_the_oracles_in_one_chunk_and_in_many(
    prompt: list[int], speculation: SpeculationParams, unlike_trio: Trio
) -> None:
    """By the model's own distribution: what the request changes is for what it generates."""
    sampling = SamplingParams(**{**SAMPLED, **CONTROLS, "prompt_logprobs": 3, "max_tokens": 12})
    [completion] = await complete(unlike_trio, sampling, speculation, prompt=prompt)
    logprobs = log_softmax(model_logits(TARGET, prompt), axis=-1)[:-1]
    assert len(completion.prompt_logprobs) == len(prompt) - 1
    check_against(logprobs, prompt[1:], completion.prompt_logprobs, num_top=3)
    logprobs = oracle_logprobs(TARGET, prompt, completion.token_ids, sampling)
    check_against(logprobs, completion.token_ids, completion.logprobs)


@pytest.mark.parametrize("num_top", [0, 3])
async def test_prompt_of_one_token_has_no_logprobs(num_top: int, unlike_trio: Trio) -> None:
    sampling = SamplingParams(max_tokens=3, ignore_eos=True, prompt_logprobs=num_top)
    [completion] = await complete(unlike_trio, sampling, PLAIN, prompt=[7])
    assert len(completion.token_ids) == 3
    assert completion.prompt_logprobs == []


@pytest.mark.parametrize("speculation", [PLAIN, REJECTION, SpeculationParams()], ids=["plain", "rejection", "default"])
@pytest.mark.parametrize("prompt", [[7], PROMPT, LONG_PROMPT], ids=len)
async def test_a_prompt_is_scored_without_a_token_generated(
    prompt: list[int], speculation: SpeculationParams, unlike_trio: Trio
) -> None:
    sampling = SamplingParams(max_tokens=0, n=2, prompt_logprobs=3, logprobs=2)
    async with AsyncClient(unlike_trio.address) as client:
        samples = await client.complete_all(prompt, sampling, speculation)
        one_token = await client.complete(prompt, replace(sampling, max_tokens=1, n=1), speculation)
    assert [len(sample.prompt_logprobs) for sample in samples] == [len(prompt) - 1, 0]
    assert samples[0].prompt_logprobs == one_token.prompt_logprobs
    for sample in samples:
        assert (sample.text, sample.token_ids, sample.logprobs) == ("", [], [])
        assert sample.finish is not None
        assert (sample.finish.reason, sample.finish.completion_tokens) == ("length", 0)
        assert (sample.finish.speculation.rounds, sample.finish.prompt_tokens) == (0, len(prompt))


async def test_a_prompt_that_is_only_read_is_in_the_cache_for_those_that_begin_with_it(tiny_trio: Trio) -> None:
    prompt = [7, 3, *range(100, 180)]
    async with AsyncClient(tiny_trio.address) as client:
        read = await client.complete(prompt, SamplingParams(max_tokens=0), trace=True)
        done = await client.complete(prompt, SamplingParams(max_tokens=3))
    assert (read.finish.cached_prompt_tokens, done.finish.cached_prompt_tokens) == (0, 80)
    assert [len(each.proposed) for each in read.traces] == [0]


async def test_asking_for_logprobs_changes_no_token(unlike_trio: Trio) -> None:
    asked = SamplingParams(**SAMPLED, prompt_logprobs=2)
    unasked = SamplingParams(**{**SAMPLED, "logprobs": None})
    for speculation in (PLAIN, REJECTION, WAYS["k = 4"]):
        [one], [other] = [await complete(unlike_trio, each, speculation) for each in (asked, unasked)]
        assert one.token_ids == other.token_ids


async def test_prompt_is_scored_in_the_first_sample_alone_and_each_has_logprobs_of_its_own(unlike_trio: Trio) -> None:
    sampling = SamplingParams(**SAMPLED, n=3, prompt_logprobs=1)
    async with AsyncClient(unlike_trio.address) as client:
        samples = await client.complete_all(PROMPT, sampling, REJECTION)
    assert [len(sample.prompt_logprobs) for sample in samples] == [len(PROMPT) - 1, 0, 0]
    for sample in samples:
        check_against(oracle_logprobs(TARGET, PROMPT, sample.token_ids, sampling), sample.token_ids, sample.logprobs)


async def test_lists_shorter_than_the_top_leave_the_rest_without_probability(unlike_trio: Trio) -> None:
    sampling = SamplingParams(**SAMPLED, allowed_token_ids=(4, 9))
    for completion in await complete(unlike_trio, sampling, PLAIN, REJECTION):
        for entry in completion.logprobs:
            assert sorted(entry.top_token_ids[:2]) == [4, 9]
            assert np.exp(entry.top_logprobs[:2]).sum() == pytest.approx(1, abs=1e-6)
            assert entry.top_logprobs[2:] == [-np.inf] * 3
