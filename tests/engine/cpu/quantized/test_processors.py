"""Processors with other instructions: the same bits, with the compiler restricted to what they have."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.engine.cpu.kernels.processor import has_features

ROOT = Path(__file__).parents[4]
BASE = "+avx,+fma,+f16c,+sse4.2,+ssse3,+popcnt"
PROCESSORS = {
    "AVX2": ("haswell", f"{BASE},+avx2,+bmi2"),
    "AVX-VNNI": ("haswell", f"{BASE},+avx2,+bmi2,+avxvnni"),
    "no dot products": ("x86-64", BASE),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROCESSORS)
def test_products_have_the_bits_of_the_reference(tmp_path: Path, name: str) -> None:
    model, features = PROCESSORS[name]
    if not has_features(*(feature[1:] for feature in features.split(","))):
        pytest.skip(f"this processor lacks some of {features}")
    restricted = {"NUMBA_CPU_NAME": model, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "tests/engine/cpu/quantized/test_product.py",
    ]
    run = subprocess.run(command, cwd=ROOT, env=os.environ | restricted, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-2000:]
    kernel = "from paceline.engine.cpu.kernels.quantized.instructions import DOT; print(DOT.name)"
    used = subprocess.run(
        [sys.executable, "-c", kernel],
        cwd=ROOT,
        env=os.environ | restricted,
        capture_output=True,
        text=True,
        check=True,
    )
    assert used.stdout.startswith(name)
