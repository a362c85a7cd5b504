"""A small target and conversations that it might have written."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.distillation.conversations import Record

VOCAB, TOP = 64, 4


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    """Models this small are trained faster by one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    # As in a trained model: from rows as short as those it begins with, no sharp distribution can be had.
    model.get_input_embeddings().weight.data *= 25
    return model


@pytest.fixture(scope="module")
def records() -> list[Record]:
    """After token t comes 3 t + 1, nearly always."""
    random, made = np.random.default_rng(0), []
    for _ in range(60):
        tokens = [int(random.integers(VOCAB))]
        for _ in range(int(random.integers(8, 20))):
            tokens.append((3 * tokens[-1] + 1) % VOCAB)
        answer = np.array(tokens[3:])
        ids = np.stack([answer, *((answer + offset) % VOCAB for offset in range(1, TOP))], axis=1)
        logprobs = np.log(np.tile([0.91, 0.03, 0.02, 0.01], (len(answer), 1)))
        written = np.arange(3, len(tokens), dtype=np.int32)
        made.append(Record(np.array(tokens, np.int32), 3, written, ids.astype(np.int32), logprobs.astype(np.float16)))
    return made
