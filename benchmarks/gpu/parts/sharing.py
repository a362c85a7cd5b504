"""Two servers on one device: time slices, the compute lock, or MPS."""

import asyncio
import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks.gpu.deployment import answer, deployed, rpc_share, speculation_of
from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results

ALPHA, NUM_DRAFTS, CUDA_GRAPH_MAX_TOKENS = 0.8, 4, 160
DAEMON = "nvidia-cuda-mps-control"


def measure(options: Options, results: Results) -> None:
    results.put(without_lock=asyncio.run(speeds(options, has_lock=False)))
    results.put(with_lock=asyncio.run(speeds(options, has_lock=True)))
    if options.device != "cuda" or shutil.which(DAEMON) is None:
        results.put(mps=f"not measured: no GPU, or no {DAEMON}")
        return
    with mps():
        results.put(mps=asyncio.run(speeds(options, has_lock=False)))


async def speeds(options: Options, has_lock: bool) -> dict[str, Any]:
    """Returns speeds by batch size."""
    both = {**options.servers, "cuda_graph_max_tokens": CUDA_GRAPH_MAX_TOKENS}
    found = {}
    target, draft = {"model": options.target, **both}, {"model": options.draft, **both}
    async with deployed(target, draft, has_lock) as now, now.with_alpha(ALPHA) as client:
        for at_once in options.sizes[:3]:
            speed, done = await answer(client, options, at_once, speculation_of(NUM_DRAFTS))
            found[str(at_once)] = {"tokens_per_s": speed, "rpc": rpc_share(done)}
            print(f"{'lock' if has_lock else 'no lock'}, {at_once} at once: {speed:.1f} tokens/s", flush=True)
    return found


@contextlib.contextmanager
def mps() -> Iterator[None]:
    """Runs NVIDIA's Multi-Process Service with its own pipes, for processes started inside."""
    with tempfile.TemporaryDirectory(prefix="paceline-mps-") as folder:
        own = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(own)
        subprocess.run([DAEMON, "-d"], check=True, timeout=20)
        try:
            yield
        finally:
            subprocess.run([DAEMON], input="quit\n", text=True, check=False, timeout=20)
            for name in own:
                del os.environ[name]
