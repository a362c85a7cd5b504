"""The digest of a model's numerics: the same wherever the bits are, another where products round differently."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from paceline.engine.cpu.batch_invariance import check_batch_invariance
from paceline.engine.cpu.kernels.processor import has_features, processor_features
from tests.engine.feeding import load_llama

ROOT = Path(__file__).parents[3]
SCRIPT = """
import torch
from tests.engine.feeding import load_llama
from paceline.engine.cpu.batch_invariance import check_batch_invariance
print(check_batch_invariance(load_llama("smollm2-135m", torch.bfloat16, num_layers=1), 16).numerics)
"""
FUSED = "avx512bf16"


def digest(block_size: int = 16, name: str = "dummy:tiny") -> str:
    return check_batch_invariance(load_llama(name), block_size).numerics


def test_it_is_the_same_each_time() -> None:
    assert digest() == digest()


def test_attention_adds_in_another_order_in_other_blocks() -> None:
    assert digest(block_size=64) != digest()


def test_other_weights_have_another() -> None:
    assert digest() != digest(name="dummy:tiny-32-a")


@pytest.mark.slow
def test_a_processor_that_multiplies_otherwise_has_another(tmp_path: Path) -> None:
    """bfloat16 products with and without AVX512-BF16."""
    if not has_features(FUSED):
        pytest.skip(f"this processor has no {FUSED} that could be left out")

    # Nor the matrix unit, which multiplies in place of both.
    features = ",".join(f"+{each}" for each in sorted(processor_features() - {FUSED, "amx-bf16"}))
    less = {"NUMBA_CPU_NAME": "x86-64-v4", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", SCRIPT]
    found = subprocess.run(command, cwd=ROOT, env=os.environ | less, capture_output=True, text=True, check=True)
    model = load_llama("smollm2-135m", torch.bfloat16, num_layers=1)
    assert found.stdout.strip() != check_batch_invariance(model, 16).numerics
