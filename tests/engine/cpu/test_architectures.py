"""Each architecture, with random weights: transformers' logits at float32, and the same bits in any batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from paceline.engine.cpu.batch_invariance import check_batch_invariance
from paceline.engine.models.architectures import ARCHITECTURES
from paceline.engine.models.dummy import dummy_tokenizer_files
from tests.engine.cpu.test_llama import oracle_logits, random_model, relative_error
from tests.engine.feeding import Feeder, Rows, load_llama

# Orders of summation differ by less than this, and operations by more.
MAX_RELATIVE_ERROR = 1e-5
VOCAB_SIZE, LENGTH, WINDOW, BLOCK_SIZE = 128, 150, 37, 16
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 512, "rms_norm_eps": 1e-5,
    "eos_token_id": 0, "bos_token_id": 1, "pad_token_id": 0,
}  # fmt: skip
CONFIGS: dict[str, PreTrainedConfig] = {
    "mistral": MistralConfig(**SHAPE, sliding_window=WINDOW),
    "qwen2": Qwen2Config(**SHAPE, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
    "qwen3": Qwen3Config(**SHAPE, head_dim=32, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=2),
}  # fmt: skip
TOKENS = torch.randint(VOCAB_SIZE, (2 * LENGTH,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.fixture(scope="module", params=CONFIGS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    random_model(CONFIGS[request.param]).save_pretrained(folder)
    for file, data in dummy_tokenizer_files(VOCAB_SIZE).items():
        (folder / file).write_bytes(data)
    return folder


def test_every_architecture_is_tested() -> None:
    """Here or, without windows, in test_llama.py."""
    assert {config.model_type for config in CONFIGS.values()} | {"llama"} == set(ARCHITECTURES)


def test_logits_are_transformers_own(folder: Path, request: pytest.FixtureRequest) -> None:
    model = random_model(CONFIGS[request.node.callspec.params["folder"]])
    tokens = TOKENS[: min(LENGTH, model.config.max_position_embeddings)]
    reference = oracle_logits(model, tokens)
    feeder = Feeder(load_llama(str(folder)), block_size=BLOCK_SIZE)
    error = relative_error(feeder.feed_split(tokens, [len(tokens)]), reference)
    assert error < MAX_RELATIVE_ERROR, f"relative error {error:.2e}"


# int4 layers run in one compiled call on every processor.
KINDS = {"float32": (torch.float32, "none"), "bfloat16": (torch.bfloat16, "none"), "int4": (torch.bfloat16, "int4")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_has_the_same_bits_in_any_batch(folder: Path, kind: str) -> None:
    model = load_llama(str(folder), *KINDS[kind])
    length = min(LENGTH, model.max_model_len)
    tokens, other = TOKENS[:length], TOKENS[LENGTH : LENGTH + length]
    whole, of_other = (Feeder(model, block_size=BLOCK_SIZE).feed_split(each, [length]) for each in (tokens, other))
    # Around the windows' beginnings, and across ends of blocks.
    splits = {
        "alone": [30, *[1] * 40, length - 70],
        "by five": [*[5] * 20, length - 100],
        "in chunks": [33, 17, 64, length - 114],
    }
    for name, sizes in splits.items():
        assert torch.equal(Feeder(model, block_size=BLOCK_SIZE).feed_split(tokens, sizes), whole), name
    feeder, blocks, others = Feeder(model, block_size=BLOCK_SIZE), list(range(0, 20, 2)), list(range(21, 1, -2))
    feeder.feed(Rows(tokens[:60], 0, blocks), Rows(other[:7], 0, others))
    one, two = feeder.feed(Rows(tokens[60:63], 60, blocks), Rows(other[7:], 7, others))
    (last,) = feeder.feed(Rows(tokens[63:], 63, blocks))
    assert torch.equal(torch.cat([one, last]), whole[60:]), "ragged"
    assert torch.equal(two, of_other[7:]), "ragged"


def test_layers_in_one_call_have_the_bits_of_layers_one_by_one(folder: Path) -> None:
    model = load_llama(str(folder), *KINDS["int4"])
    decoder, found = model._decoder, []
    whole = Feeder(model).feed_split(TOKENS[:100], [90, 10])
    model._decoder = lambda *arguments: found.append(decoder(*arguments))
    assert torch.equal(Feeder(model).feed_split(TOKENS[:100], [90, 10]), whole)
    assert all(each is not None for each in found), "these layers run in one call"


def test_the_check_at_load_runs_a_layer_of_each_kind(folder: Path) -> None:
    assert check_batch_invariance(load_llama(str(folder)), BLOCK_SIZE).variant_parts == []
