"""Steps of each model alone on the GPU, beside the time to read its weights once."""

import asyncio
import gc
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from draft_server.drafter import ProposeJob, Support, Wish
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.config import DRAFT_ROLE, TARGET_ROLE, EngineConfig
from paceline.engine.cuda.runner import CudaRunner
from paceline.engine.engine import Engine, build_engine
from paceline.engine.scheduling.job import Job
from paceline.sampling import DraftMode, Rule, SamplingParams
from target_server.verifier import Check, VerifyJob

COPY_BYTES = 4 << 30
REPEATS = 100
CONTEXT = 512
DRAFTS = 4


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy within the GPU's memory."""
    source = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    target.copy_(source)
    seconds = gpu_seconds(lambda: target.copy_(source), 20)
    return 2 * COPY_BYTES / seconds


def gpu_seconds(launch: Any, repeats: int = REPEATS) -> float:
    """Of one launch, by the GPU's own clock."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        launch()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats


@dataclass(frozen=True, slots=True)
class Step:
    """One kind of step."""

    gpu_s: float
    # On the host too: arrays filled, results handed over.
    whole_s: float


def time_steps(engine: Engine, make_job: Any, length: int) -> Step:
    """`make_job(sequence)`: after a context of `length` tokens."""
    runner = engine.worker._runner
    assert isinstance(runner, CudaRunner)
    sequence = Sequence(SequenceOptions(SamplingParams(seed=0), length, ()), engine.pool)
    sequence.reserve(length + 32)
    prompt: Job = VerifyJob(sequence, list(range(100, 100 + length)), Check([], [], Rule.MATCH))
    while prompt.pending:
        runner.step([(prompt, min(512, len(prompt.pending)))])
    whole = []
    for _ in range(REPEATS):
        job = make_job(sequence)
        started_s = time.perf_counter()
        while job.pending:
            runner.step([(job, len(job.pending))])
        whole.append(time.perf_counter() - started_s)
        sequence.truncate(length)
        sequence.reserve(length + 32)
    assert runner.last is not None
    with torch.inference_mode():
        return Step(gpu_seconds(runner.last.launch), statistics.median(whole))


def measure(target: str, draft: str, deterministic: bool = False) -> dict[str, Any]:
    """All models one after the other."""
    bandwidth = copy_bandwidth()
    print(f"copy: {bandwidth / 1e12:.2f} TB/s")
    found: dict[str, Any] = {"copy_bytes_per_s": bandwidth}
    support = Support(256, 0.995)
    for name, model, quantization in (
        ("target", target, "none"), ("draft", draft, "none"), ("draft int8", draft, "int8"),
    ):  # fmt: skip
        config = EngineConfig(
            model=model, quantization=quantization, deterministic=deterministic, device="cuda",
            gpu_memory_fraction=0.5, max_model_len=4096,
        )  # fmt: skip
        engine = build_engine(
            config,
            TARGET_ROLE if name == "target" else DRAFT_ROLE,
            asyncio.new_event_loop(),
            lambda line: print(f"  {line}"),
        )
        runner = engine.worker._runner
        assert isinstance(runner, CudaRunner)
        reading_s = runner.model_bytes / bandwidth
        jobs = {"one row": lambda s: VerifyJob(s, [7], Check([], [], Rule.MATCH))}
        if name == "target":
            jobs["verify"] = lambda s: VerifyJob(s, [7], Check([8] * DRAFTS, [], Rule.MATCH))
        else:
            wish = Wish(DRAFTS, DraftMode.GREEDY, support)
            jobs["four drafts"] = lambda s, wish=wish: ProposeJob(s, [7], wish)  # type: ignore[misc]
        for kind, make_job in jobs.items():
            step = time_steps(engine, make_job, CONTEXT)
            steps = DRAFTS if kind == "four drafts" else 1
            ratio = step.gpu_s / steps / reading_s
            print(f"{name}, {kind}: {step.gpu_s * 1e3:.3f} ms on the GPU, {step.whole_s * 1e3:.3f} ms in all, "
                  f"a forward {ratio:.2f} x reading {runner.model_bytes / 1e9:.2f} GB")  # fmt: skip
            found[f"{name}, {kind}"] = {
                "gpu_ms": step.gpu_s * 1e3, "whole_ms": step.whole_s * 1e3, "of_reading": ratio,
            }  # fmt: skip
        del engine, runner
        gc.collect()
        torch.cuda.empty_cache()
    return found
