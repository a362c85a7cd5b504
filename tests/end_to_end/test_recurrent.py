"""Pairs with recurrent layers: no drafts, cached prefixes, preemptions or restarts change their output."""

import asyncio
import contextlib
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.client import AsyncClient, Completion
from paceline.errors import InvalidArgument
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, Rule, SpeculationParams
from tests.conftest import SMALL_FLAGS
from tests.engine.cpu.test_architectures import write_random
from tests.engine.cpu.test_recurrent import RECURRENT, config_of
from tests.hosted import Host
from tests.services import Trio, restart, running, start_trio, wait_until_free

FLAGS = (*SMALL_FLAGS, "--check-integrity")
GREEDY = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.8, seed=5, ignore_eos=True)
BEAMS = SamplingParams(max_tokens=20, beams=3, ignore_eos=True)
PLAIN = SpeculationParams(enabled=False, rule=Rule.MATCH)
PROMPTS = [random.Random(number).choices(range(100), k=45 * number + 5) for number in range(4)]
BLOCK_SIZE = 16


def drafts(k: int, drafter: Drafter = Drafter.MODEL) -> SpeculationParams:
    return SpeculationParams(drafter=drafter, num_speculative_tokens=k, rule=Rule.MATCH)


def write_pair(kind: str, folder: Path) -> tuple[str, str]:
    """A target, and a draft that agrees with it now and then."""
    for role in ("target", "draft"):
        write_random(config_of(kind), folder / role)
    file = folder / "draft" / "model.safetensors"
    torch.manual_seed(1)
    tensors = {name: tensor + 0.01 * torch.randn_like(tensor) for name, tensor in load_file(file).items()}
    save_file(tensors, file, {"format": "pt"})
    return str(folder / "target"), str(folder / "draft")


@pytest.fixture(scope="module", params=RECURRENT)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return write_pair(request.param, tmp_path_factory.mktemp("pair"))


def start(host: Host, pair: tuple[str, str], *flags: str) -> Trio:
    target, draft = pair
    return host.trio(("--model", target, *FLAGS, *flags), ("--model", draft, *FLAGS, *flags))


@pytest.fixture(scope="module")
def trio(host: Host, pair: tuple[str, str]) -> Trio:
    return start(host, pair)


async def complete_all(
    trio: Trio, sampling: SamplingParams, speculation: SpeculationParams, prompts: list[list[int]] = PROMPTS
) -> list[Completion]:
    async with AsyncClient(trio.address) as client:
        return await asyncio.gather(*(client.complete(prompt, sampling, speculation) for prompt in prompts))


def tokens_of(completions: list[Completion]) -> list[list[int]]:
    return [completion.token_ids for completion in completions]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
async def test_drafts_change_no_output(trio: Trio, sampling: SamplingParams) -> None:
    plain = await complete_all(trio, sampling, PLAIN)
    accepted = rejected = 0
    for speculation in (drafts(5), drafts(16, Drafter.HYBRID)):
        completions = await complete_all(trio, sampling, speculation)
        assert tokens_of(completions) == tokens_of(plain)
        for completion in completions:
            usage = completion.finish.speculation
            accepted += usage.accepted
            rejected += usage.proposed - usage.accepted
    assert accepted > 0
    assert rejected > 0


async def test_a_cached_prefix_changes_no_output(trio: Trio, host: Host, pair: tuple[str, str]) -> None:
    prompt = random.Random(100).choices(range(100), k=100)
    uncached = start(host, pair, "--no-prefix-caching")
    for prompts, num_cached in (([prompt], 0), ([prompt], 96), ([prompt + [7] * 30], 96), ([prompt[:50]], 0)):
        [completion] = await complete_all(trio, GREEDY, drafts(4), prompts)
        [expected] = await complete_all(uncached, GREEDY, PLAIN, prompts)
        assert completion.finish.cached_prompt_tokens == num_cached
        assert completion.token_ids == expected.token_ids


@pytest.mark.slow
async def test_more_sequences_than_states_wait_for_one_and_their_output_is_the_same(
    trio: Trio, host: Host, pair: tuple[str, str]
) -> None:
    # A state that is refused is waited for no longer than the target.
    target, draft = (("--model", model, *FLAGS, "--kv-cache-memory", "1200KiB") for model in pair)
    pressed = host.trio(target, draft, ("--target-timeout", "0.05"))
    for sampling, prompts in ((SAMPLED, PROMPTS), (BEAMS, PROMPTS[:3])):
        plain = await complete_all(trio, sampling, PLAIN, prompts)
        assert tokens_of(await complete_all(pressed, sampling, drafts(4), prompts)) == tokens_of(plain)
    with pytest.raises(InvalidArgument, match=r"beams is 10; .+ recurrent states"):
        await complete_all(pressed, replace(BEAMS, beams=10), PLAIN, PROMPTS[:1])
    for server in (pressed.draft, pressed.target):
        await wait_until_free(server)


@pytest.mark.slow
@pytest.mark.parametrize("role", ["draft", "target"])
async def test_a_server_that_is_killed_in_mid_stream_changes_no_output(
    pair: tuple[str, str], role: str, tmp_path: Path
) -> None:
    sampling, prompt = SamplingParams(max_tokens=300, temperature=0.8, seed=2, ignore_eos=True), PROMPTS[3]
    flags = (("--model", model, *FLAGS) for model in pair)
    with start_trio(tmp_path, *flags) as trio, contextlib.ExitStack() as stack:
        async with AsyncClient(trio.address) as client:
            expected = await client.complete(prompt, sampling, PLAIN)
            tokens: list[int] = []
            killed = False
            async for chunk in client.stream(prompt, sampling, drafts(4)):
                tokens += chunk.token_ids
                if len(tokens) > 100 and not killed:
                    killed = True
                    service = getattr(trio, role)
                    service.kill()
                    stack.enter_context(running(await asyncio.to_thread(restart, service)))
            assert killed
            assert tokens == expected.token_ids
