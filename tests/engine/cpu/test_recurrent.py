"""Recurrent layers: transformers' logits at float32, the same bits in any batch, and no trace of rejected drafts."""

import random
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedConfig

from paceline.engine.batch import BatchBuilder
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import open_sequence
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cache.state_pool import SNAPSHOT_TOKENS
from paceline.engine.cpu.forward_invariance import check_forward
from paceline.engine.cpu.modules_model import CpuModules
from paceline.errors import ConfigError
from paceline.sampling_params import SamplingParams
from tests.engine.cpu.test_architectures import (
    BLOCK_SIZE,
    LENGTH,
    SHAPE,
    TOKENS,
    check_bits,
    write_random,
)
from tests.engine.cpu.test_llama import check_logits, random_model
from tests.engine.feeding import Feeder, load_modules

RECURRENT: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        "head_dim": 32, "linear_num_key_heads": 2, "linear_num_value_heads": 4,
        "linear_key_head_dim": 32, "linear_value_head_dim": 16,
    },
    "lfm2": {
        "layer_types": ["conv", "full_attention"] * 2, "block_auto_adjust_ff_dim": False, "conv_L_cache": 3,
        "conv_bias": True,
    },
}  # fmt: skip
MAX_MODEL_LEN = 2048


def config_of(kind: str) -> PreTrainedConfig:
    return AutoConfig.for_model(kind, **SHAPE | {"max_position_embeddings": MAX_MODEL_LEN} | RECURRENT[kind])


@pytest.fixture(scope="module", params=RECURRENT)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_random(config_of(kind), folder)
    return folder


load = cache(load_modules)


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def model(request: pytest.FixtureRequest, folder: Path) -> CpuModules:
    return load(str(folder), request.param)


class Engine:
    """A model with a cache and sequences of its own."""

    def __init__(self, model: CpuModules, num_blocks: int = 200) -> None:
        self._model = model
        self._cache = model.make_cache(num_blocks, BLOCK_SIZE)
        self.pool = BlockPool(num_blocks, BLOCK_SIZE, self._cache.copy_blocks, states=self._cache.states)

    def open(self, num_prompt_tokens: int = 1) -> Sequence:
        return open_sequence(SequenceOptions(SamplingParams(seed=0), num_prompt_tokens, ()), self.pool)

    @torch.inference_mode()
    def feed(self, sequence: Sequence, tokens: list[int]) -> torch.Tensor:
        """Returns the logits of all tokens: [num_tokens, vocab_size]."""
        sequence.reserve(sequence.length + len(tokens))
        builder = BatchBuilder()
        state = sequence.plan_state(len(tokens))
        builder.add(tokens, sequence.length, sequence.blocks, [True] * len(tokens), state)
        batch = builder.build(self._model.padded(len(tokens)))
        logits = self._model.logits(self._model.forward(batch, self._cache, self._cache.plan(batch.spans)))
        sequence.append(tokens)
        return logits

    def feed_split(self, sequence: Sequence, tokens: list[int], sizes: Iterable[int]) -> torch.Tensor:
        logits, done = [], 0
        for size in sizes:
            sequence.commit(sequence.length)
            logits.append(self.feed(sequence, tokens[done : done + size]))
            done += size
        return torch.cat(logits)


def test_logits_are_transformers_own(folder: Path, kind: str) -> None:
    tokens = TOKENS[:LENGTH]
    logits = Feeder(load(str(folder)), block_size=BLOCK_SIZE).feed_split(tokens, [70, 1, 9, LENGTH - 80])
    check_logits(logits, random_model(config_of(kind)), tokens)


def test_a_row_has_the_same_bits_in_any_batch(model: CpuModules) -> None:
    check_bits(model)


def test_the_check_at_load_passes(model: CpuModules) -> None:
    assert check_forward(model, BLOCK_SIZE).variant_parts == []


def test_rejected_drafts_leave_no_trace(model: CpuModules) -> None:
    tokens, wrong = TOKENS[:LENGTH], random.Random(0)
    engine = Engine(model)
    plain = engine.feed_split(engine.open(), tokens, [40, *[1] * (LENGTH - 40)])
    sequence = engine.open()
    logits = [engine.feed(sequence, tokens[:40])]
    for num_accepted in (5, 0, 3, 1, 4, 2, 0, 0, 5, 5):
        at = sequence.length
        # The session commits what the last round's tail decided, not its accepted drafts.
        sequence.commit(at - min(at, num_accepted))
        right = tokens[at : at + 1 + num_accepted]
        round_logits = engine.feed(sequence, right + wrong.choices(range(100), k=5 - num_accepted))
        sequence.truncate(at + len(right))
        assert sequence.length == at + len(right)
        logits.append(round_logits[: len(right)])
    found = torch.cat(logits)
    assert torch.equal(found, plain[: len(found)])


def test_a_fork_goes_on_like_its_parent(model: CpuModules) -> None:
    engine = Engine(model)
    parent, forked = engine.open(), engine.open()
    engine.feed(parent, TOKENS[:60])
    forked.fork(parent, 50)
    assert forked.length == 50
    expected = engine.feed_split(engine.open(), TOKENS[:80], [50, 30])[50:]
    engine.feed_split(parent, [7] * 40, [20, 20])
    assert torch.equal(engine.feed_split(forked, TOKENS[50:80], [15, 15]), expected)


def test_a_cached_prefix_goes_on_like_a_fresh_one(model: CpuModules) -> None:
    engine = Engine(model)
    prompt = TOKENS[:100]
    first = engine.open(num_prompt_tokens=100)
    engine.feed_split(first, [*prompt, *[1] * 30], [100, 1, 29])
    first.commit(first.length)
    first.truncate(0)
    again = engine.open(num_prompt_tokens=100)
    assert again.match_prefix(prompt[:-1]) == 99 // BLOCK_SIZE * BLOCK_SIZE
    expected = engine.feed(engine.open(), prompt)[again.length :]
    assert torch.equal(engine.feed(again, prompt[again.length :]), expected)


def test_a_rollback_to_a_snapshot_is_exact(model: CpuModules) -> None:
    engine = Engine(model)
    tokens = (TOKENS * 10)[: SNAPSHOT_TOKENS + 80]
    sequence = engine.open()
    whole = engine.feed_split(sequence, tokens, [512, 300, 268, 24])
    sequence.commit(sequence.length)
    sequence.truncate(SNAPSHOT_TOKENS + 20)
    assert sequence.length == SNAPSHOT_TOKENS
    assert torch.equal(engine.feed(sequence, tokens[SNAPSHOT_TOKENS:]), whole[SNAPSHOT_TOKENS:])


@pytest.mark.parametrize(("field", "value", "reason"), [
    ("linear_key_head_dim", 6, "linear_key_head_dim is 6; it must be a multiple of 4"),
    ("hidden_act", "gelu", "layer 0: the convolution of a delta rule must have SiLU and no bias"),
])  # fmt: skip
def test_what_the_kernels_do_not_have_is_refused(field: str, value: object, reason: str, tmp_path: Path) -> None:
    config = config_of("qwen3_5_text")
    setattr(config, field, value)
    write_random(config, tmp_path)
    with pytest.raises(ConfigError, match=reason):
        load_modules(str(tmp_path))
