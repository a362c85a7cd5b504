"""Recent responses through the real services: the same output with fewer runs of the target, for those with one salt."""

from dataclasses import replace

import pytest

from paceline.client import AsyncClient, Completion
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, SpeculationParams
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.hosted import Host
from tests.services import Trio

pytestmark = pytest.mark.slow

PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams(max_tokens=120, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=120, ignore_eos=True, temperature=0.8, seed=5)
FIXED = SpeculationParams(drafter=Drafter.SUFFIX, num_speculative_tokens=8)
PLAIN = SpeculationParams(enabled=False)


async def ask(trio: Trio, salt: str, speculation: SpeculationParams, sampling: SamplingParams = GREEDY) -> Completion:
    async with AsyncClient(trio.address) as client:
        return await client.complete(PROMPT, sampling, speculation, cache_salt=salt)


def rounds_of(completion: Completion) -> int:
    assert completion.finish is not None
    return completion.finish.speculation.rounds


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [4, Bounds(0, 16)], ids=str)
async def test_an_answer_given_before_changes_no_output_and_saves_runs(
    unlike_trio: Trio, sampling: SamplingParams, length: int | Bounds
) -> None:
    salt = f"{sampling.temperature} {length}"
    speculation = SpeculationParams(drafter=Drafter.SUFFIX, num_speculative_tokens=length)
    plain = await ask(unlike_trio, f"plain {salt}", PLAIN, sampling)
    first = await ask(unlike_trio, salt, speculation, sampling)
    again = await ask(unlike_trio, salt, speculation, sampling)
    assert first.token_ids == again.token_ids == plain.token_ids
    if length == 4:
        # Whether an adaptive length drafts depends on times.
        assert rounds_of(again) < 0.4 * rounds_of(plain)
    # Another seed's text agrees here and there.
    other = replace(sampling, seed=6)
    expected = await ask(unlike_trio, f"plain {salt}", PLAIN, other)
    assert (await ask(unlike_trio, salt, speculation, other)).token_ids == expected.token_ids


async def test_an_answer_without_speculation_is_remembered_too(unlike_trio: Trio) -> None:
    plain = await ask(unlike_trio, "remembered", PLAIN)
    again = await ask(unlike_trio, "remembered", FIXED)
    assert again.token_ids == plain.token_ids
    assert rounds_of(again) < 0.3 * rounds_of(plain)


async def test_another_salt_learns_nothing_of_it(unlike_trio: Trio) -> None:
    first = await ask(unlike_trio, "one", FIXED)
    for salt in ("another", "One"):
        assert rounds_of(await ask(unlike_trio, salt, FIXED)) == rounds_of(first)
    assert rounds_of(await ask(unlike_trio, "one", FIXED)) < rounds_of(first)


async def test_with_the_flag_nothing_is_remembered(host: Host) -> None:
    trio = host.trio(UNLIKE_TARGET, UNLIKE_DRAFT, ("--suffix-cache-tokens", "0"))
    first, again = await ask(trio, "", FIXED), await ask(trio, "", FIXED)
    assert (again.token_ids, rounds_of(again)) == (first.token_ids, rounds_of(first))


async def test_requests_with_different_salts_share_no_cached_prompt(tiny_trio: Trio) -> None:
    prompt, short = [number % 30 for number in range(100)], SamplingParams(max_tokens=4, ignore_eos=True)
    cached, outputs = [], []
    async with AsyncClient(tiny_trio.address) as client:
        for salt in ("a", "b", "a"):
            done = await client.complete(prompt, short, PLAIN, cache_salt=salt)
            assert done.finish is not None
            cached.append(done.finish.cached_prompt_tokens)
            outputs.append(done.token_ids)
    assert cached == [0, 0, 96]
    assert outputs[0] == outputs[1] == outputs[2]


async def test_a_trace_names_who_copied(unlike_trio: Trio) -> None:
    await ask(unlike_trio, "traced", PLAIN)
    drafters = set()
    async with AsyncClient(unlike_trio.address) as client:
        async for chunk in client.stream(PROMPT, GREEDY, FIXED, cache_salt="traced", trace=True):
            assert chunk.trace is not None
            drafters.add(chunk.trace.drafter)
    assert drafters == {"suffix", "none"}
