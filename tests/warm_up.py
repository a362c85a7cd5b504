"""Compiles the kernels and converts the embedded checkpoint, so that no first run and no test waits for them.

python -m tests.warm_up     (`make setup` runs it)

Numba compiles a kernel at its first call, once for each type of weights and of cache. Two processes share the work: the
kernels for bfloat16, and those for float32 with everything that is the same for both. Neither needs what the other
compiles.
"""

import asyncio
import subprocess
import sys
from pathlib import Path

from paceline.serving.main import prepare_process

prepare_process()

import numpy as np  # noqa: E402
import torch  # noqa: E402

from paceline.engine.cpu.sampler import CpuSampler  # noqa: E402
from paceline.engine.engine import build_engine  # noqa: E402
from paceline.engine.engine_config import DRAFT_ROLE, TARGET_ROLE, EngineConfig, ModelRole  # noqa: E402
from paceline.engine.models.weights import find_folder  # noqa: E402
from paceline.engine.sampling.specs import GumbelMax, SampleComplement, SampleTruncated  # noqa: E402
from paceline.sampling_params import SamplingParams  # noqa: E402

# For each type of activations: a role, and the weights' quantization and the cache's type.
KINDS: dict[str, tuple[tuple[ModelRole, str, str], ...]] = {
    "bfloat16": (
        (DRAFT_ROLE, "int8", "auto"), (TARGET_ROLE, "auto", "auto"), (TARGET_ROLE, "none", "auto"),
        (TARGET_ROLE, "int8", "auto"), (DRAFT_ROLE, "int8", "int8"), (TARGET_ROLE, "int4", "int8"),
        (TARGET_ROLE, "none", "int8"),
    ),
    "float32": (
        (TARGET_ROLE, "none", "auto"), (TARGET_ROLE, "int8", "auto"), (TARGET_ROLE, "none", "bfloat16"),
        (TARGET_ROLE, "none", "int8"),
    ),
}  # fmt: skip


def build(role: ModelRole, dtype: str, quantization: str, cache: str) -> None:
    """Builds an engine, which runs a forward pass. Only the embedded model has formats of its own, which `auto` keeps."""
    config = EngineConfig.model_validate({
        "model": "smollm2-135m" if quantization == "auto" else "dummy:tiny", "dtype": dtype, "quantization": quantization, "kv_cache_dtype": cache,
        "kv_cache_memory": 16 << 20,
    })  # fmt: skip
    loop = asyncio.new_event_loop()
    build_engine(config, role, loop)
    loop.close()


def sample() -> None:
    """Samples with each of the sampling kernels."""
    plain, cut = SamplingParams(temperature=1.0, seed=0), SamplingParams(temperature=1.0, seed=0, top_k=2)
    support = np.arange(2)
    specs = [GumbelMax(plain, (), 1), SampleComplement(plain, (), support, 0.5), SampleTruncated(cut, (), 0.5, 2, 1.0)]
    CpuSampler().sample(torch.zeros(len(specs), 512), specs)


def warm_up(dtype: str) -> None:
    for kind in KINDS[dtype]:
        build(kind[0], dtype, *kind[1:])
    if dtype == "float32":
        sample()
        for converted in (torch.bfloat16, torch.float32):
            find_folder("smollm2-135m", converted, print)


def main() -> None:
    if dtypes := sys.argv[1:]:
        for dtype in dtypes:
            warm_up(dtype)
        return
    command, root = [sys.executable, "-m", "tests.warm_up"], Path(__file__).parents[1]
    halves = [subprocess.Popen([*command, dtype], cwd=root) for dtype in KINDS]
    sys.exit(max([half.wait() for half in halves]))


if __name__ == "__main__":
    main()
