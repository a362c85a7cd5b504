"""A model comes to a device with a budget, a cache that fits, and rows that have their own bits."""

import pytest
import torch

from paceline.engine.cuda.backend import build_on
from paceline.engine.cuda.budget import MIB
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.models.weights import LoadedModel, load_model
from paceline.engine.sampling import shared_vocabulary
from paceline.errors import ConfigError
from tests.engine.cuda.device import DEVICE

CONFIG = EngineConfig(
    model="dummy:tiny",
    dtype="float32",
    device="cuda",
    gpu_memory_utilization=0.5,
    max_num_batched_tokens=32,
    cuda_graph_max_tokens=8,
    batch_invariant=True,
)
ROLE = ModelRole("draft", multi_steps=1)


class CountedMemory:
    """Stands for a GPU's: where there is none, nobody counts what tensors take."""

    def __init__(self, total: int) -> None:
        self.total = total

    def used(self) -> int:
        return 3 * MIB

    def peak_of(self, run: object) -> int:
        assert callable(run)
        run()
        return MIB


def load() -> LoadedModel:
    return load_model("dummy:tiny", torch.float32)


@pytest.mark.campaign
def test_the_cache_takes_what_its_share_leaves() -> None:
    said: list[str] = []
    backend = build_on(CONFIG, ROLE, load(), 40, said.append, DEVICE, CountedMemory(1024 * MIB))
    [budget] = [line for line in said if line.startswith("budget: ")]
    assert f"({backend.num_blocks} blocks of 0.01 MiB), activations 1 MiB" in budget
    assert budget.endswith("reserve 256 MiB: 512 MiB of 512 (0.5 of 1,024)")
    assert backend.block_size == 16
    assert backend.check.variant_parts == []


@pytest.mark.campaign
def test_what_it_was_given_it_takes() -> None:
    backend = build_on(CONFIG.model_copy(update={"kv_cache_memory": MIB, "block_size": 32}), ROLE, load(), 40, lambda line: None, DEVICE,
                   CountedMemory(1024 * MIB))  # fmt: skip
    assert (backend.num_blocks, backend.block_size) == (64, 32)
    assert backend.quantization == "none"


def test_activations_are_those_of_a_step_whose_rows_all_want_log_probabilities_and_too_many_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scored: list[tuple[int, ...]] = []

    def spy(logits: torch.Tensor, specs: list[object], samples: list[object]) -> list[None]:
        scored.append(tuple(logits.shape))
        return [None] * len(specs)

    monkeypatch.setattr(shared_vocabulary, "compute_logprobs", spy)
    with pytest.raises(ConfigError, match=r"the KV cache has fewer than two blocks; .* budget: weights 3 MiB"):
        build_on(CONFIG, ROLE, load(), 40, lambda line: None, DEVICE, CountedMemory(6 * MIB))
    # A sampled token of each kind, by all rows that go to torch at a time.
    assert scored == [(CONFIG.max_num_batched_tokens, 512)] * 3
