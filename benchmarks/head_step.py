"""A draft head's step over a forward pass of its target, and that pass with the head loaded and unused, in turns.

python -m benchmarks.head_step [--model NAME] [--intermediate 1536] [--drafted 8192] [--context 256] [--rounds 150]

The head is an EAGLE-3 head with random weights, which its time does not depend on. `--intermediate`: of its MLP; `--drafted`: its
vocabulary. The first draft behind a pass also brings the head's weights into the processor's caches.
"""

import argparse
import asyncio
import dataclasses
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

from paceline.serving.main import prepare_process

prepare_process()

import torch  # noqa: E402
from transformers import LlamaConfig  # noqa: E402

from benchmarks.deployment import MODEL  # noqa: E402
from benchmarks.draft_step import elapsed_ms  # noqa: E402
from paceline.engine.cache.sequence import Sequence, SequenceOptions  # noqa: E402
from paceline.engine.engine import Engine, build_engine  # noqa: E402
from paceline.engine.engine_config import TARGET_ROLE, EngineConfig  # noqa: E402
from paceline.engine.models.weights import load_model  # noqa: E402
from paceline.sampling_params import SamplingParams  # noqa: E402
from paceline.speculation_params import Rule  # noqa: E402
from target_server.verify_job import VerifyJob, VerifySpec  # noqa: E402
from tests.draft_heads import write_head  # noqa: E402

MOST_DRAFTS = 8
CACHE_BYTES = 256 << 20


def write(folder: Path, model: str, intermediate: int, num_drafted: int) -> None:
    config = load_model(model, torch.bfloat16, in_place=True).config
    target = LlamaConfig(
        hidden_size=config.hidden_size,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_model_len,
    )
    ids = torch.arange(num_drafted) * config.vocab_size // num_drafted
    is_drafted = torch.zeros(config.vocab_size, dtype=torch.bool)
    is_drafted[ids] = True
    tensors = {"d2t": ids - torch.arange(num_drafted), "t2d": is_drafted}
    write_head(folder, tensors, model=target, intermediate=intermediate, draft_vocab_size=num_drafted)


def target_step(engine: Engine, context: int, uses_head: bool, num_drafts: int) -> Callable[[], None]:
    """Returns a greedy Verify of one token at `context` with drafts for the next round, as the target server's worker runs it."""
    runner = engine.worker._runner
    sampling = SamplingParams(seed=0, temperature=0)
    sequence = Sequence(SequenceOptions(sampling, context, (), uses_draft_head=uses_head), engine.pool)

    def run(tail: list[int], num_next: int) -> None:
        sequence.reserve(context + MOST_DRAFTS + 2)
        job = VerifyJob(sequence, tail, VerifySpec([], [], Rule.MATCH, num_next_drafts=num_next))
        while job.pending:
            runner.step([(job, len(job.pending))])
        sequence.truncate(context)

    run(list(range(100, 100 + context)), int(uses_head))
    return lambda: run([7], num_drafts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--intermediate", type=int, default=1536)
    parser.add_argument("--drafted", type=int, default=8192)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=150)
    arguments = parser.parse_args()
    model, context = arguments.model, arguments.context
    config = EngineConfig.model_validate({"model": model, "kv_cache_memory": CACHE_BYTES})
    loop = asyncio.new_event_loop()
    with tempfile.TemporaryDirectory(prefix="paceline-bench-") as folder:
        write(Path(folder), model, arguments.intermediate, arguments.drafted)
        without, loaded = (
            build_engine(config, dataclasses.replace(TARGET_ROLE, draft_head=head), loop) for head in ("none", folder)
        )
        bytes_a_token = [CACHE_BYTES / each.pool.num_blocks / each.pool.block_size for each in (without, loaded)]
        steps = {
            "without a head": target_step(without, context, False, 0),
            "without again": target_step(without, context, False, 0),
            "loaded and unused": target_step(loaded, context, False, 0),
            "hidden states kept": target_step(loaded, context, True, 0),
            "1 draft": target_step(loaded, context, True, 1),
            f"{MOST_DRAFTS} drafts": target_step(loaded, context, True, MOST_DRAFTS),
        }
        taken_ms: dict[str, list[float]] = {name: [] for name in steps}
        for number in range(arguments.rounds):
            # Each comes behind each other.
            for name in list(steps)[number % len(steps) :] + list(steps)[: number % len(steps)]:
                taken_ms[name].append(elapsed_ms(steps[name]))
    pass_ms, *_, kept_ms, one_ms, all_ms = (statistics.median(each) for each in taken_ms.values())
    print(f"{model}, context {context}: a forward pass of one token takes {pass_ms:.2f} ms; over it:")
    for name, each in taken_ms.items():
        print(f"  {name:19} {statistics.median(each) / pass_ms:.3f}")
    first, further = (one_ms - kept_ms) / pass_ms, (all_ms - one_ms) / (MOST_DRAFTS - 1) / pass_ms
    print(f"a step of the head: the first {first:.3f}, a further one {further:.3f} of a forward pass")
    print(f"bytes of cache a token: {bytes_a_token[0]:.0f} without the head, {bytes_a_token[1]:.0f} with it")


if __name__ == "__main__":
    main()
