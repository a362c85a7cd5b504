"""What the interpreter runs is also what the compiler takes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.campaign
def test_all_kernels_compile_for_a_hopper_gpu(tmp_path: Path) -> None:
    # In a process of its own: this one may have bound the kernels to the interpreter.
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"TRITON_CACHE_DIR": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.engine.cuda.compile_all"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    lines = [line for line in ran.stdout.splitlines() if "bytes spilled" in line]
    assert [line for line in lines if not line.endswith(" 0 bytes spilled")] == []
    assert {line.split()[0] for line in lines} == {
        "_attend_part", "_add_parts", "_norm", "_rotate_and_place", "_gate", "_multiply",
        "_survey", "_weigh", "_rank_part", "_merge", "_cut", "_select_token", "_plan_next_step",
    }  # fmt: skip
