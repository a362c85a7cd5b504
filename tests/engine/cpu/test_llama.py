"""Our forward pass against transformers' at float32: the oracle says what the logits are."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from torch.overrides import TorchFunctionMode
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from paceline.engine.cpu.kernels import attention
from paceline.engine.cpu.runner import CpuModel
from paceline.engine.models.architectures import ARCHITECTURES
from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.engine.models.weights import find_folder
from tests.engine.feeding import Feeder, load_llama, load_modules

# Different orders of summation differ by about 1e-6 at float32; a wrong operation by far more than this.
MAX_RELATIVE_ERROR = 1e-4
# Another order of summation is about as far from the exact logits as transformers' own; a wrong operation much farther.
MOST_OF_THEIR_ERROR = 3
VOCAB_SIZE = 300
SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 3,
    "num_attention_heads": 6, "num_key_value_heads": 2, "max_position_embeddings": 1024, "eos_token_id": 0,
    "bos_token_id": 1, "rms_norm_eps": 1e-5,
}  # fmt: skip
# So strong a scaling, from so short an original length, moves all logits of a 300 token context.
LLAMA3_ROPE = {
    "rope_type": "llama3", "rope_theta": 10000.0, "factor": 16.0, "low_freq_factor": 1.0,
    "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
}  # fmt: skip
LLAMA_32: dict[str, Any] = SHAPE | {
    "tie_word_embeddings": True,
    "rope_parameters": LLAMA3_ROPE | {"rope_theta": 500000.0, "factor": 32.0},
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 256}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama tied": LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama untied": LlamaConfig(**SHAPE, tie_word_embeddings=False),
    "llama biased": LlamaConfig(**SHAPE, tie_word_embeddings=False, attention_bias=True, mlp_bias=True),
    "llama llama3 rope": LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_parameters=LLAMA3_ROPE),
    "llama 3.2 1B": LlamaConfig(**LLAMA_32 | {"head_dim": 64, "num_attention_heads": 8}),
    "llama 3.2 3B": LlamaConfig(**LLAMA_32 | {"head_dim": 128, "num_attention_heads": 6}),
    "llama yarn rope": LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_parameters=YARN_ROPE),
    "llama linear rope": LlamaConfig(**SHAPE, tie_word_embeddings=True, rope_parameters=LINEAR_ROPE),
    "mistral": MistralConfig(**SHAPE, tie_word_embeddings=False, head_dim=24, sliding_window=None),
    "qwen2": Qwen2Config(**SHAPE, tie_word_embeddings=True),
    "qwen3": Qwen3Config(**SHAPE, tie_word_embeddings=False, head_dim=32),
}


def random_model(config: PreTrainedConfig) -> PreTrainedModel:
    """Random in all that is stored: a bias of 0 or a norm of 1 would hide that we forgot it."""
    known = ARCHITECTURES.get(config.model_type)
    norm = 1.0 - (known.norm_offset if known else 0.0)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    stored = model.state_dict()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.normal_(norm if "norm" in name else 0.0, 0.2)
        for name, buffer in model.named_buffers():
            if name in stored:
                buffer += 0.2 * torch.randn_like(buffer)
    return model.eval()


@torch.inference_mode()
def oracle_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size]"""
    return model(torch.tensor([tokens])).logits[0].float()


def relative_error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    assert ours.shape == reference.shape
    return float((ours - reference).abs().max() / reference.abs().max())


class InFloat64(TorchFunctionMode):
    """Computes in float64 what a model computes in float32 whatever its dtype is, as norms and rotations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def widened(given: Any) -> Any:
            return torch.float64 if given is torch.float32 else given

        func = torch.Tensor.double if func is torch.Tensor.float else func
        return func(*map(widened, args), **{name: widened(given) for name, given in (kwargs or {}).items()})


@torch.inference_mode()
def exact_logits(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """[num_tokens, vocab_size] float64"""
    model = deepcopy(model).double()
    if model._can_set_experts_implementation():
        # The others know no float64.
        model.set_experts_implementation("eager")
    with InFloat64():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    assert logits.dtype is torch.float64
    return logits


def check_logits(ours: torch.Tensor, model: PreTrainedModel, tokens: list[int]) -> None:
    """Asserts that our logits are as exact as transformers' own at float32, on any processor."""
    exact = exact_logits(model, tokens)
    error, theirs = (relative_error(each.double(), exact) for each in (ours, oracle_logits(model, tokens)))
    assert error < MOST_OF_THEIR_ERROR * theirs, f"relative error {error:.2e}, transformers' {theirs:.2e}"


def check_all_ways(feeder: Feeder, tokens: list[int], reference: torch.Tensor) -> None:
    """Prefill whole, in uneven chunks, and one by one behind a chunk."""
    count = len(tokens)
    ways = {
        "whole": [count],
        "chunked": [70, 1, 33, 17, count - 121],
        "one by one": [count - 20, *[1] * 20],
    }
    for name, sizes in ways.items():
        assert sum(sizes) == count
        error = relative_error(feeder.feed_split(tokens, sizes), reference)
        assert error < MAX_RELATIVE_ERROR, f"{name}: relative error {error:.2e}"


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_of_a_random_model_are_transformers_own(name: str, tmp_path: Path) -> None:
    model = random_model(CONFIGS[name])
    model.save_pretrained(tmp_path)
    for file, data in dummy_tokenizer_files(VOCAB_SIZE).items():
        (tmp_path / file).write_bytes(data)
    tokens = torch.randint(VOCAB_SIZE, (300,), generator=torch.Generator().manual_seed(1)).tolist()

    feeder = Feeder(load_llama(str(tmp_path)), num_blocks=10, block_size=32)

    check_all_ways(feeder, tokens, oracle_logits(model, tokens))


@pytest.mark.parametrize("load", [load_llama, load_modules])
def test_kernels_are_looked_up_once_and_not_by_each_layer_of_each_forward(
    load: Callable[[str], CpuModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    feeder = Feeder(load("dummy:tiny"))
    feeder.feed_split([1, 2, 3], [3])
    monkeypatch.setattr(attention, "address_of", None)
    feeder.feed_split([1, 2, 3], [2, 1])


@pytest.mark.slow
def test_logits_of_smollm2_are_transformers_own(prompts: list[str]) -> None:
    folder = find_folder("smollm2-135m", torch.float32, print)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    text = "\n".join(prompts[:12])
    tokens = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text).ids[:200]
    assert len(tokens) == 200

    feeder = Feeder(load_llama("smollm2-135m"), num_blocks=4)

    check_all_ways(feeder, tokens, oracle_logits(model, tokens))
