"""k drafts of the default draft, step by step and in one forward pass with masks, in target forward passes of one token, in turns.

python -m benchmarks.draft_step [--context 256] [--draft NAME]

The time does not depend on which tokens are fed, so the default draft, which has learned no masks, is timed in both
ways.
"""

import argparse
import asyncio
import statistics
import time
from collections.abc import Callable

from paceline.serving.main import prepare_process

prepare_process()

from benchmarks.deployment import DRAFT  # noqa: E402
from benchmarks.forward import ROUNDS, our_step  # noqa: E402
from draft_server.parallel_propose_job import ParallelProposeJob  # noqa: E402
from paceline.engine.cache.sequence import Sequence, SequenceOptions  # noqa: E402
from paceline.engine.engine import build_engine  # noqa: E402
from paceline.engine.engine_config import DRAFT_ROLE, EngineConfig  # noqa: E402
from paceline.sampling_params import SamplingParams  # noqa: E402
from paceline.serving.propose_job import ProposeJob, ProposeSpec, Support  # noqa: E402
from paceline.speculation_params import DraftMode  # noqa: E402

TAIL = [7]
COUNTS = (1, 2, 3, 5, 8)
MASK = 8


def draft_step(draft: str, context: int, num_drafts: int, in_one_forward: bool) -> Callable[[], None]:
    """Returns a greedy Propose of `num_drafts` tokens at `context`, as the draft server's worker runs it."""
    engine = build_engine(EngineConfig(model=draft, quantization="auto"), DRAFT_ROLE, asyncio.new_event_loop())
    runner = engine.worker._runner
    sequence = Sequence(SequenceOptions(SamplingParams(seed=0), context, ()), engine.pool)

    def reserve() -> None:
        sequence.reserve(context + len(TAIL) + max(COUNTS))

    def make_job(tail: list[int]) -> ProposeJob:
        spec = ProposeSpec(num_drafts, DraftMode.GREEDY, Support(1, 1.0))
        if in_one_forward:
            return ParallelProposeJob(sequence, tail, spec, [MASK] * (num_drafts - 1))
        return ProposeJob(sequence, tail, spec)

    def run(job: ProposeJob) -> None:
        while job.pending:
            runner.step([(job, len(job.pending))])
        sequence.truncate(context)
        reserve()

    reserve()
    run(make_job(list(range(100, 100 + context))))
    return lambda: run(make_job(list(TAIL)))


def elapsed_ms(step: Callable[[], None]) -> float:
    started_s = time.perf_counter()
    step()
    return (time.perf_counter() - started_s) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--draft", default=DRAFT)
    arguments = parser.parse_args()
    verify = our_step("none", arguments.context, 1)
    # By the number of drafts, and whether they come from one forward pass.
    steps = {
        (count, in_one): draft_step(arguments.draft, arguments.context, count, in_one)
        for count in COUNTS
        for in_one in (False, True)
    }
    verify_ms: list[float] = []
    draft_ms: dict[tuple[int, bool], list[float]] = {way: [] for way in steps}
    for _ in range(ROUNDS):
        for way, step in steps.items():
            # As in a round: the target has just run, and its weights are in the processor's caches.
            verify_ms.append(elapsed_ms(verify))
            draft_ms[way].append(elapsed_ms(step))
    row_ms = statistics.median(verify_ms)
    print(f"the target's forward pass of one row at context {arguments.context}: {row_ms:.1f} ms; parts of it:")
    print(f"{'drafts':>6} {'step by step':>13} {'one forward pass':>12}")
    for count in COUNTS:
        many, one = (statistics.median(draft_ms[count, in_one]) / row_ms for in_one in (False, True))
        print(f"{count:6d} {many:13.3f} {one:12.3f}")


if __name__ == "__main__":
    main()
