"""The arithmetic of beam search is transformers', on a tiny random model, for many widths, penalties and ends."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from coordinator.beams.hypotheses import BeamRules, Beams, Tokens
from coordinator.beams.models import TargetBeams, Verified
from coordinator.beams.search import paths_of, search
from coordinator.remote.branches import common_length
from coordinator.stats import GenerationStats
from paceline.engine.models.dummy import dummy_config, make_dummy
from tests.coordinator.contexts import make_context
from tests.end_to_end.tiny_oracle import one_thread

NAME = "tiny-32-a"


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    model = LlamaForCausalLM(dummy_config(NAME)).float().eval()
    model.load_state_dict(make_dummy(NAME, torch.float32)[1], strict=False)
    # None below would mean the configuration's own.
    model.generation_config.eos_token_id = None
    return model


@torch.inference_mode()
def ours(model: LlamaForCausalLM, prompt: list[int], rules: BeamRules) -> list[int]:
    beams = Beams(rules)
    while not beams.is_over:
        inputs = torch.tensor([[*prompt, *each.tokens] for each in beams.live])
        rows = model(inputs).logits[:, -1].log_softmax(-1).numpy()
        order = np.argsort(-rows, axis=-1, kind="stable")[:, : rules.num_next]
        beams.step([[(int(token), float(row[token])) for token in best] for row, best in zip(rows, order, strict=True)])
    return list(beams.best.tokens)


@torch.inference_mode()
def theirs(model: LlamaForCausalLM, prompt: list[int], rules: BeamRules) -> list[int]:
    ends = sorted(rules.ending_ids)
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), num_beams=rules.width, do_sample=False, length_penalty=rules.length_penalty,
        max_new_tokens=rules.max_tokens, eos_token_id=ends or None, pad_token_id=31,
    )  # fmt: skip
    tokens = out[0, len(prompt) :].tolist()
    end = next((index + 1 for index, token in enumerate(tokens) if token in rules.ending_ids), len(tokens))
    return tokens[:end]


@pytest.mark.parametrize("width", [2, 3, 4, 8])
@pytest.mark.parametrize("ends", [(), (5,), (3, 9, 17)])
def test_hypotheses_are_those_of_transformers(model: LlamaForCausalLM, width: int, ends: tuple[int, ...]) -> None:
    rng = np.random.default_rng(width)
    lengths = set()
    with one_thread():
        for penalty in (-1.0, 0.0, 0.6, 1.0, 2.0):
            prompt = rng.integers(0, 32, 6).tolist()
            rules = BeamRules(width, penalty, frozenset(ends), 12)
            found = ours(model, prompt, rules)
            assert found == theirs(model, prompt, rules), rules
            lengths.add(len(found))
    # Where a text can end, some ends are among these.
    assert (len(lengths) > 1) == bool(ends)


def test_paths_are_the_longest_of_live_hypotheses_and_drafts() -> None:
    live: list[Tokens] = [(1,), (2,), (3,)]
    levels: list[list[Tokens]] = [[(1, 4), (1, 5), (2, 6)], [(1, 4, 7), (1, 4, 8), (2, 6, 9)]]
    assert paths_of(live, levels) == [(3,), (1, 5), (1, 4, 7), (1, 4, 8), (2, 6, 9)]
    assert paths_of(live, []) == live


def test_common_length_counts_what_both_begin_with() -> None:
    for length in range(6):
        assert common_length((1, 2, 3, 4, 5), (*(1, 2, 3, 4, 5)[:length], 9, 9)) == length
    assert common_length((), (1,)) == 0
    assert common_length((1, 2), (1, 2, 3)) == 2


class ByTable:
    """A target that finds the same tokens likeliest behind every hypothesis, and keeps what happened in order."""

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened

    async def verify(
        self, paths: Sequence[Tokens], num_decided: int, wanted: Collection[Tokens], num_next: int
    ) -> Verified:
        self._happened.append("verified")
        return Verified({path: [(token, -1.0 - token) for token in range(num_next)] for path in paths})

    def release(self) -> None:
        pass


async def test_a_prompt_counts_as_read_long_before_the_search_ends() -> None:
    """Beside a prompt that is being read, others measure nothing."""
    context, happened = make_context([1, 2], max_tokens=3), list[str]()
    context.request = replace(context.request, sampling=replace(context.request.sampling, beams=2))
    target = cast(TargetBeams, ByTable(happened))
    rounds = search(context, None, target, GenerationStats(), lambda: happened.append("read"))
    assert len([emission async for emission in rounds]) == 1
    assert happened == ["verified", "read"] * 3
