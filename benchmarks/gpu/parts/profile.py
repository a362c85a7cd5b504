"""The parts of a step's time: a table by kernel, from torch.profiler, and the gaps between kernels."""

from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu.clock import gpu_seconds
from benchmarks.gpu.engines import GpuEngine, MakeJob, gpu_engine, propose, verify
from benchmarks.gpu.options import Options
from benchmarks.gpu.results import Results
from paceline.engine.engine_config import DRAFT_ROLE, TARGET_ROLE

STEPS = 20
NAME_LENGTH = 90


def measure(options: Options, results: Results) -> None:
    for name, model, role, quantization, make_job in (
        ("target, verify", options.target, TARGET_ROLE, "none", verify),
        ("draft int8, four drafts", options.draft, DRAFT_ROLE, "int8", propose),
        ("draft, four drafts", options.draft, DRAFT_ROLE, "none", propose),
    ):
        with gpu_engine(options, model, role, quantization, cuda_graph_max_tokens=5) as engine:
            found = profile_step(engine, make_job)
        results.put(**{name: found})
        print(
            f"{name}: {found['step_us']:.0f} us, between kernels {found['gaps_us']:.0f} us, without a graph {found['without_graph']}"
        )
        for row in found["kernels"][:15]:
            print(f"  {row['us_per_step']:8.1f} us {row['calls_per_step']:6.1f} x  {row['kernel']}", flush=True)


def profile_step(engine: GpuEngine, make_job: MakeJob) -> dict[str, Any]:
    engine.time_step(make_job, 1)
    step_us = gpu_seconds(engine.launch, STEPS) * 1e6
    rows, without_graph = kernels_of(engine.launch), False
    if not rows:
        # A profiler that can't look into graphs: the same kernels, launched one by one.
        rows, without_graph = kernels_of(lambda: compute(engine)), True
    return {
        "step_us": step_us, "gaps_us": step_us - sum(row["us_per_step"] for row in rows),
        "without_graph": without_graph, "kernels": rows,
    }  # fmt: skip


@torch.inference_mode()
def compute(engine: GpuEngine) -> None:
    assert engine.runner.last is not None
    engine.runner.last._compute()


def kernels_of(launch: Any) -> list[dict[str, Any]]:
    """Returns kernels by total time, longest first."""
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        for _ in range(STEPS):
            launch()
        torch.cuda.synchronize()
    rows = [
        {
            "kernel": each.key[:NAME_LENGTH],
            "us_per_step": each.self_device_time_total / STEPS,
            "calls_per_step": each.count / STEPS,
        }
        for each in seen.key_averages()
        if each.device_type == torch.autograd.DeviceType.CUDA and each.self_device_time_total > 0
    ]
    return sorted(rows, key=lambda row: -row["us_per_step"])
