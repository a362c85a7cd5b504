"""Greedy output, with and without speculation, is transformers' greedy output, id for id.

PACELINE_TEST_PROMPTS names another file of prompts: JSON lines with "turns", as Spec-Bench has them.
"""

import asyncio
import functools
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from paceline.client import AsyncClient
from paceline.engine.models.weights import find_folder
from paceline.prompts import read_prompts
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.services import Trio

MODEL = "smollm2-135m"
OWN_PROMPTS = Path(__file__).parents[1] / "data" / "prompts.jsonl"
PLAIN = SpeculationParams(enabled=False)
SPECULATIVE_MODES = {k: SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=k) for k in (1, 4, 7)}


@functools.cache
def first_turns() -> list[str]:
    path = Path(os.environ.get("PACELINE_TEST_PROMPTS") or OWN_PROMPTS)
    return [record.text for record in read_prompts("PACELINE_TEST_PROMPTS", path)]


def spread(count: int) -> list[str]:
    """So many prompts, of all categories: they stand in the file category by category."""
    prompts = first_turns()
    return [prompts[i * len(prompts) // count] for i in range(min(count, len(prompts)))]


@torch.inference_mode()
def expected_ids(prompts: list[str], max_tokens: int, **settings: Any) -> list[tuple[list[int], list[int]]]:
    """For each prompt its ids through the chat template, and transformers' continuation, EOS included: greedy, or with
    other settings of `generate`."""
    folder = find_folder(MODEL, torch.float32, print)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    pairs = []
    for prompt in prompts:
        chat = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        out = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=max_tokens, **settings)
        pairs.append((ids, out[0, len(ids) :].tolist()))
    return pairs


async def check_same_ids(trio: Trio, num_prompts: int, max_tokens: int) -> None:
    pairs = await asyncio.to_thread(expected_ids, spread(num_prompts), max_tokens)
    sampling = SamplingParams(max_tokens=max_tokens)
    async with AsyncClient(trio.address) as client:
        for speculation in (PLAIN, *SPECULATIVE_MODES.values()):
            done = await asyncio.gather(*(client.complete(ids, sampling, speculation) for ids, _ in pairs))
            for (_, expected), completion in zip(pairs, done, strict=True):
                assert completion.token_ids == expected, speculation
                assert completion.finish is not None
                assert (completion.finish.reason == "stop") == (expected[-1] == 2)
            accepted = sum(completion.origins.count("A") for completion in done)
            assert (accepted > 0) == speculation.enabled


async def test_greedy_ids_are_those_of_transformers(real_trio: Trio) -> None:
    await check_same_ids(real_trio, 2, 16)


@pytest.mark.campaign
@pytest.mark.timeout(900)
async def test_greedy_ids_are_those_of_transformers_on_10_prompts(real_trio: Trio) -> None:
    await check_same_ids(real_trio, 10, 64)


async def test_chat_prompt_has_the_ids_that_transformers_gives_it(real_trio: Trio) -> None:
    tokenizer = AutoTokenizer.from_pretrained(find_folder(MODEL, torch.float32, print))
    async with AsyncClient(real_trio.address) as client:
        for prompt in spread(6):
            chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": prompt}]
            ids = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
            assert await client.tokenize(chat) == ids
        one = SamplingParams(max_tokens=1)
        ours, by_ids = await client.complete(chat, one), await client.complete(ids, one)
    assert ours.finish is not None
    assert ours.finish.prompt_tokens == len(ids)
    assert ours.token_ids == by_ids.token_ids
