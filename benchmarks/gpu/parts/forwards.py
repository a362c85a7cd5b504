"""Steps of each model alone, against the time to read its weights once at the measured copy bandwidth."""

from benchmarks.gpu.engines import NUM_DRAFTS, GpuEngine, MakeJob, gpu_engine, one_row, propose, verify
from benchmarks.gpu.options import Options
from benchmarks.gpu.parts.machine import copy_bandwidth
from benchmarks.gpu.results import Results
from paceline.engine.engine_config import DRAFT_ROLE, TARGET_ROLE

# Name, job, sequences at once, and forwards in the step.
Kind = tuple[str, MakeJob, int, int]
VERIFYING: list[Kind] = [("one row", one_row, 1, 1), ("verify", verify, 1, 1), ("verify, 32 at once", verify, 32, 1)]
DRAFTING: list[Kind] = [
    ("one row", one_row, 1, 1),
    ("four drafts", propose, 1, NUM_DRAFTS),
    ("four drafts, 32 at once", propose, 32, NUM_DRAFTS),
]


def measure(options: Options, results: Results) -> None:
    bandwidth = copy_bandwidth()
    results.put(copy_bytes_per_s=bandwidth)
    for name, model, role, kinds, settings in (
        ("target", options.target, TARGET_ROLE, VERIFYING, {}),
        ("draft int8", options.draft, DRAFT_ROLE, DRAFTING, {"quantization": "int8"}),
        ("draft", options.draft, DRAFT_ROLE, DRAFTING, {}),
        ("target, batch-invariant", options.target, TARGET_ROLE, VERIFYING, {"batch_invariant": True}),
    ):
        with gpu_engine(options, model, role, **settings) as engine:  # type: ignore[arg-type]
            time_kinds(name, engine, kinds, bandwidth, results)


def time_kinds(name: str, engine: GpuEngine, kinds: list[Kind], bandwidth: float, results: Results) -> None:
    model_bytes = engine.runner.model_bytes
    for kind, make_job, num_sequences, num_forwards in kinds:
        step = engine.time_step(make_job, num_sequences)
        of_reading = step.gpu_s / num_forwards / (model_bytes / bandwidth) if step.num_programs == 1 else None
        figures = {
            "gpu_ms": step.gpu_s * 1e3, "whole_ms": step.whole_s * 1e3, "num_programs": step.num_programs,
            "weights_bytes": model_bytes, "of_reading": of_reading,
        }  # fmt: skip
        results.put(**{f"{name}, {kind}": figures})
        ratio = "" if of_reading is None else f", a forward pass {of_reading:.2f} x reading its weights"
        print(
            f"{name}, {kind}: {figures['gpu_ms']:.3f} ms on the GPU, {figures['whole_ms']:.3f} ms in all{ratio}",
            flush=True,
        )
