"""One model on the GPU without services, and its steps."""

import asyncio
import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.gpu.clock import gpu_seconds
from benchmarks.gpu.options import Options
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cuda.runner import CudaRunner
from paceline.engine.engine import build_engine
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.scheduling.job import Job
from paceline.sampling_params import SamplingParams
from paceline.serving.propose_job import ProposeJob, ProposeSpec, Support
from paceline.speculation_params import DraftMode, Rule
from target_server.verify_job import VerifyJob, VerifySpec

REPEATS = 50
# Drafts of a round.
NUM_DRAFTS = 4
# Rows of a prompt's chunk.
CHUNK_ROWS = 512
# Tokens that a step may add to the context.
ROOM = 32
# Fits 32 contexts of the 3B.
KV_CACHE = "4GiB"
MakeJob = Callable[[Sequence], Job]


def one_row(sequence: Sequence) -> Job:
    return VerifyJob(sequence, [7], VerifySpec([], [], Rule.MATCH))


def verify(sequence: Sequence) -> Job:
    return VerifyJob(sequence, [7], VerifySpec([8] * NUM_DRAFTS, [], Rule.MATCH))


def propose(sequence: Sequence) -> Job:
    return ProposeJob(sequence, [7], ProposeSpec(NUM_DRAFTS, DraftMode.GREEDY, Support(256, 0.995)))


@dataclass(frozen=True, slots=True)
class Step:
    gpu_s: float
    # With the host's part: arrays filled, results handed over. All programs of the step.
    whole_s: float
    # Programs that a step launches; 1 if one graph does all.
    num_programs: int


class GpuEngine:
    def __init__(self, runner: Any, pool: BlockPool, context: int) -> None:
        self.runner: CudaRunner = runner
        self._pool, self._context = pool, context

    def close(self) -> None:
        """Frees the model even if the caller keeps this object."""
        del self.runner, self._pool

    @contextlib.contextmanager
    def sequences(self, count: int) -> Iterator[list[Sequence]]:
        """Yields sequences whose contexts are in the cache."""
        made = []
        for index in range(count):
            sequence = Sequence(SequenceOptions(SamplingParams(seed=0), self._context, ()), self._pool)
            sequence.reserve(self._context + ROOM)
            tokens = [100 + (index + place) % 300 for place in range(self._context)]
            prompt = VerifyJob(sequence, tokens, VerifySpec([], [], Rule.MATCH))
            while prompt.pending:
                self.runner.step([(prompt, min(CHUNK_ROWS, len(prompt.pending)))])
            made.append(sequence)
        try:
            yield made
        finally:
            for sequence in made:
                sequence.truncate(0)

    def time_step(self, make_job: MakeJob, num_sequences: int) -> Step:
        """Times a step of `num_sequences` sequences."""
        whole_s = []
        with self.sequences(num_sequences) as sequences:
            for _ in range(REPEATS):
                jobs = [make_job(sequence) for sequence in sequences]
                num_programs, started_s = 0, time.perf_counter()
                while any(job.pending for job in jobs):
                    self.runner.step([(job, len(job.pending)) for job in jobs if job.pending])
                    num_programs += 1
                whole_s.append(time.perf_counter() - started_s)
                for sequence in sequences:
                    sequence.truncate(self._context)
                    sequence.reserve(self._context + ROOM)
            return Step(gpu_seconds(self.launch), statistics.median(whole_s), num_programs)

    @torch.inference_mode()
    def launch(self) -> None:
        """Runs the last step's program again."""
        assert self.runner.last is not None
        self.runner.last.launch()


@contextlib.contextmanager
def gpu_engine(
    options: Options, model: str, role: ModelRole, quantization: str = "none", batch_invariant: bool = False, cuda_graph_max_tokens: int = 160
) -> Iterator[GpuEngine]:  # fmt: skip
    """`cuda_graph_max_tokens`: as the setting; a lower value captures faster. The memory is freed at the end."""
    config = EngineConfig(
        model=model, quantization=quantization, batch_invariant=batch_invariant, device="cuda", gpu_memory_utilization=0.5,
        kv_cache_memory=KV_CACHE, max_model_len=options.max_model_len, cuda_graph_max_tokens=cuda_graph_max_tokens,
    )  # type: ignore[arg-type]  # fmt: skip
    built = build_engine(config, role, asyncio.new_event_loop(), lambda line: print(f"  {line}"))
    engine = GpuEngine(built.worker._runner, built.pool, options.prompt_tokens)
    del built
    try:
        yield engine
    finally:
        engine.close()
        gc.collect()
        torch.cuda.empty_cache()
