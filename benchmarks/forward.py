"""One target forward pass against transformers', by number of tokens, in turns within one run.

python -m benchmarks.forward [--context 256] [--dtype float32]

*modules* are transformers' own modules over our cache (`--implementation transformers`).
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable
from typing import Any

from paceline.serving.main import prepare_process

prepare_process()

import torch  # noqa: E402

from benchmarks.reference import load_reference  # noqa: E402
from paceline.engine.cache.sequence import Sequence, SequenceOptions  # noqa: E402
from paceline.engine.engine import build_engine  # noqa: E402
from paceline.engine.engine_config import TARGET_ROLE, EngineConfig  # noqa: E402
from paceline.engine.scheduling.job import Job  # noqa: E402
from paceline.sampling_params import SamplingParams  # noqa: E402
from paceline.speculation_params import Rule  # noqa: E402
from target_server.verify_job import VerifyJob, VerifySpec  # noqa: E402

ROUNDS = 40


def our_step(
    quantization: str, context: int, rows: int, dtype: str = "bfloat16", implementation: str = "auto"
) -> Callable[[], None]:
    """Returns a greedy Verify of `rows` tokens at `context`, as the target server's worker runs it."""
    loop = asyncio.new_event_loop()
    config = EngineConfig.model_validate(
        {"quantization": quantization, "dtype": dtype, "implementation": implementation}
    )
    engine = build_engine(config, TARGET_ROLE, loop)
    runner = engine.worker._runner
    sequence = Sequence(SequenceOptions(SamplingParams(seed=0), context, ()), engine.pool)
    sequence.reserve(context + rows)
    prompt: Job = VerifyJob(sequence, list(range(100, 100 + context)), VerifySpec([], [], Rule.MATCH))
    runner.step([(prompt, context)])

    def step() -> None:
        runner.step([(VerifyJob(sequence, [7], VerifySpec([8] * (rows - 1), [], Rule.MATCH)), rows)])
        sequence.truncate(context)
        sequence.reserve(context + rows)

    return step


def their_step(model: Any, context: int, rows: int) -> Callable[[], None]:
    """Returns the same through transformers, with its cache and an argmax."""
    with torch.inference_mode():
        cache = model(torch.arange(100, 100 + context)[None], use_cache=True).past_key_values
    tokens = torch.tensor([[7] + [8] * (rows - 1)])

    def step() -> None:
        with torch.inference_mode():
            model(tokens, past_key_values=cache, use_cache=True).logits.argmax(-1).tolist()
            cache.crop(-rows)

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    options = parser.parse_args()
    context, dtype = options.context, options.dtype
    reference = load_reference(dtype=getattr(torch, dtype))
    print(f"SmolLM2-135M, {dtype}, context {context}, {torch.get_num_threads()} threads, median of {ROUNDS} in turns")
    print(f"{'rows':>5} {'transformers':>15} {'ours':>10} {'modules':>10} {'int8':>10}   ours, modules / transformers")
    for rows in (1, 5, 8, 128):
        steps = {
            "theirs": their_step(reference, context, rows),
            "ours": our_step("none", context, rows, dtype),
            "modules": our_step("none", context, rows, dtype, "transformers"),
            "int8": our_step("int8", context, rows, dtype),
        }
        times: dict[str, list[float]] = {name: [] for name in steps}
        for _ in range(ROUNDS):
            for name, step in steps.items():
                started = time.perf_counter()
                step()
                times[name].append((time.perf_counter() - started) * 1e3)
        ms = {name: statistics.median(values) for name, values in times.items()}
        print(
            f"{rows:5d} {ms['theirs']:12.1f} ms {ms['ours']:7.1f} ms {ms['modules']:7.1f} ms {ms['int8']:7.1f} ms"
            f" {ms['ours'] / ms['theirs']:8.2f} {ms['modules'] / ms['theirs']:8.2f}"
        )


if __name__ == "__main__":
    main()
