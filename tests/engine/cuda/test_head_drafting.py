"""A target on a GPU drafts with its head as the CPU engine does, whatever its cache went through."""

import functools
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from paceline.engine import block_drafting, head_drafting
from paceline.engine.backend import copying
from paceline.engine.batch import Batch
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence as CacheSequence
from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.cpu.head_building import KINDS as CPU_HEADS
from paceline.engine.cpu.head_building import build_head
from paceline.engine.cpu.runner import CpuRunner
from paceline.engine.cuda.draft_heads.head_drafting import CudaHeadDrafting
from paceline.engine.cuda.draft_heads.loading import KINDS as HEADS
from paceline.engine.cuda.graph_shapes import GraphShapes
from paceline.engine.cuda.runner import CudaRunner
from paceline.engine.engine_config import EngineConfig
from paceline.engine.head_loading import rows_to_lend
from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.quantization import INT8
from paceline.engine.models.weights import load_model
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Rule
from target_server.verify_job import VerifyJob, VerifyJobResult, VerifySpec
from tests.draft_heads import WRITERS
from tests.engine.cuda.device import DEVICE, HALF
from tests.engine.cuda.feeding import GpuFeeder
from tests.engine.feeding import load_llama

CONFIG = EngineConfig(model="dummy:tiny", dtype="float32")
BLOCK_SIZE, NUM_BLOCKS, NUM_NEXT = 16, 32, 2
TOKENS = [int(token) for token in np.random.default_rng(0).integers(512, size=90)]
PROMPT = TOKENS[:21]
# So small that both a padded and an unpadded step come up.
SHAPES = GraphShapes(num_rows=8, num_tokens=256, num_ahead=0)


class Target:
    """A runner with a pool, as its server's worker drives it."""

    def __init__(self, runner: Any, copy_blocks: Callable[[list[int], list[int]], None]) -> None:
        self.runner, self._pool = runner, BlockPool(NUM_BLOCKS - 1, BLOCK_SIZE, copy_blocks)

    def open(self, temperature: float = 0.0, uses_head: bool = True) -> CacheSequence:
        sampling = SamplingParams(temperature=temperature, seed=7)
        return CacheSequence(SequenceOptions(sampling, 1, (), uses_draft_head=uses_head), self._pool)

    def verify(
        self, *asked: tuple[CacheSequence, list[int], list[int]], num_next: int = NUM_NEXT, most: int = 99
    ) -> list[VerifyJobResult]:
        """A round of all together, from each one's sequence, tail and drafts; a step feeds at most so many tokens of each."""
        jobs = []
        for sequence, tail, drafts in asked:
            sequence.reserve(sequence.length + len(tail) + len(drafts) + num_next + 1)
            jobs.append(VerifyJob(sequence, list(tail), VerifySpec(drafts, [], Rule.MATCH, num_next_drafts=num_next)))
        while any(job.pending for job in jobs):
            self.runner.step([(job, min(most, len(job.pending))) for job in jobs if job.pending])
        assert [job.failure for job in jobs] == [None] * len(jobs)
        return [job.result for job in jobs]


def load(kind: str, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """A random head of this format, and the target's rows that it lacks."""
    with tempfile.TemporaryDirectory() as folder:
        WRITERS[kind](Path(folder))
        loaded = load_model(CONFIG.model, dtype)
        head = load_draft_head(folder, loaded.config, loaded.weights_fingerprint, dtype)
        return head, rows_to_lend(head, loaded, dtype)


@functools.cache
def gpu_parts(
    kind: str, dtype: torch.dtype = torch.float32, quantization: str = "none"
) -> tuple[GpuFeeder, CudaHeadDrafting]:
    """quantization: of the head."""
    feeder, (head, rows) = GpuFeeder.of(CONFIG.model, dtype, batch_invariant=False), load(kind, dtype)
    with torch.inference_mode():
        built = HEADS[kind].build(head, feeder.model, quantization, rows, DEVICE)
    return feeder, HEADS[kind].drafting(built, NUM_BLOCKS, BLOCK_SIZE, DEVICE)


def make_gpu(kind: str, graph_shapes: GraphShapes | None = None, *numbers: Any) -> Target:
    """With a pool of its own: what is in the cache is left from others. numbers: see `gpu_parts`."""
    feeder, drafting = gpu_parts(kind, *numbers)
    runner = CudaRunner(feeder.model, feeder.attention, False, graph_shapes, DEVICE, drafting)
    return Target(runner, copying(feeder.attention.copy_blocks, drafting.copy_blocks))


def make_cpu(kind: str) -> Target:
    model, (head, rows) = load_llama(CONFIG.model), load(kind)
    attention = model.make_cache(NUM_BLOCKS, BLOCK_SIZE)
    float32 = np.dtype(np.float32)
    built = build_head(head, model, rows, CONFIG, model.max_model_len)
    drafting = CPU_HEADS[kind].drafting(model, built, NUM_BLOCKS, BLOCK_SIZE, float32, float32)
    return Target(CpuRunner(model, attention, drafting), copying(attention.copy_blocks, drafting.copy_blocks))


@functools.cache
def cpu_target(kind: str) -> Target:
    return make_cpu(kind)


def expected(kind: str, context: list[int], temperature: float = 0.0) -> VerifyJobResult:
    """By the CPU engine, of a sequence that reads all at once."""
    sequence = cpu_target(kind).open(temperature)
    [result] = cpu_target(kind).verify((sequence, context, []))
    sequence.truncate(0)
    return result


def check(result: VerifyJobResult, kind: str, context: list[int], temperature: float = 0.0) -> None:
    """Of a round whose last token in the cache is the context's."""
    theirs = expected(kind, context, temperature)
    assert result.tokens[-1:] == theirs.tokens
    check_drafts(result, theirs)


def check_drafts(result: VerifyJobResult, theirs: VerifyJobResult, error: float = 1e-4) -> None:
    ours, others = result.next_drafts, theirs.next_drafts
    assert ours is not None
    assert others is not None
    assert (ours.position, ours.tokens) == (others.position, others.tokens)
    assert ours.confidences == pytest.approx(others.confidences, rel=error)


# Triton's interpreter takes seconds for each.
KINDS = pytest.mark.parametrize(
    "kind", ["eagle3", *(pytest.param(kind, marks=pytest.mark.campaign) for kind in ("eagle", "dflash"))]
)


@pytest.mark.parametrize(("kind", "temperature"), [("eagle3", 0.0), ("eagle", 0.7), ("dflash", 0.7)])
def test_drafts_follow_the_accepted_ones(kind: str, temperature: float) -> None:
    """Whatever rejected ones have left in the cache, with and without drafts of the head's own behind them."""
    target, context = make_gpu(kind, SHAPES), [*PROMPT]
    sequence = target.open(temperature)
    [result] = target.verify((sequence, context, []))
    for num_right in (2, 0):
        check(result, kind, context, temperature)
        context += result.tokens[-1:]
        drafts: list[int] = []
        for _ in range(num_right + 1):
            drafts += expected(kind, [*context, *drafts], temperature).tokens
        drafts[-1] = (drafts[-1] + 1) % 512
        [result] = target.verify((sequence, context[sequence.length :], [*drafts, 9]))
        assert result.tokens[:num_right] == drafts[:num_right]
        context += drafts[:num_right]
        sequence.truncate(len(context))
        result = replace(result, tokens=result.tokens[: num_right + 1])
    check(result, kind, context, temperature)


def test_no_token_depends_on_the_head() -> None:
    target = make_gpu("eagle3")
    plain, sequence = target.open(0.7, uses_head=False), target.open(0.7)
    said, context, drafts = list[int](), [*PROMPT], list[int]()
    while len(said) < 4:
        said += target.verify((plain, said[-1:] or PROMPT, []), num_next=0)[0].tokens
    while len(context) < len(PROMPT) + 4:
        [result] = target.verify((sequence, context[sequence.length :], drafts))
        num_right = next((n for n, draft in enumerate(drafts) if draft != result.tokens[n]), len(drafts))
        context += result.tokens[: num_right + 1]
        sequence.truncate(len(context) - 1)
        assert result.next_drafts is not None
        drafts = result.next_drafts.tokens
    assert context[len(PROMPT) :][:4] == said


@KINDS
@pytest.mark.parametrize("at_a_time", [pytest.param(head_drafting.MAX_ROWS, marks=pytest.mark.campaign), 16])
def test_sequences_draft_as_each_alone(kind: str, at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different lengths, one of them without the head; a prompt may be read in parts, also by the head."""
    for module in (head_drafting, block_drafting):
        monkeypatch.setattr(module, "MAX_ROWS", at_a_time)
    target, contexts = make_gpu(kind), [TOKENS[:3], TOKENS[3:30], TOKENS[30:64]]
    sequences = [target.open(uses_head=number != 1) for number in range(3)]
    results = target.verify(*((each, context, []) for each, context in zip(sequences, contexts, strict=True)), most=20)
    assert results[1].tokens == expected(kind, contexts[1]).tokens
    assert results[1].next_drafts is not None
    assert results[1].next_drafts.tokens == []
    for number in (0, 2):
        check(results[number], kind, contexts[number])


@KINDS
def test_a_prefix_that_was_cached_drafts_alike(kind: str) -> None:
    target, context = make_gpu(kind), [*TOKENS[:36], *TOKENS[50:55]]
    first = target.open()
    target.verify((first, TOKENS[:40], []), num_next=0)
    first.commit(40)
    first.truncate(0)
    second = target.open()
    assert second.match_prefix(context[:-1]) == 2 * BLOCK_SIZE
    [result] = target.verify((second, context[second.length :], []))
    check(result, kind, context)


@KINDS
def test_a_fork_drafts_alike(kind: str) -> None:
    """From within a block, which is copied, while the parent goes on in its own."""
    target = make_gpu(kind)
    parent, child = target.open(), target.open()
    target.verify((parent, PROMPT, []))
    child.fork(parent, len(PROMPT) - 2)
    [of_child, of_parent] = target.verify((child, [7, 8], []), (parent, [3, 4], []))
    check(of_child, kind, [*PROMPT[:-2], 7, 8])
    check(of_parent, kind, [*PROMPT, 3, 4])


@KINDS
def test_another_text_behind_a_truncate_is_read_afresh(kind: str) -> None:
    target = make_gpu(kind)
    sequence = target.open()
    target.verify((sequence, PROMPT, []))
    sequence.truncate(14)
    target.verify((sequence, [5, 6, 7], []), num_next=0)
    [result] = target.verify((sequence, [8], []))
    check(result, kind, [*PROMPT[:14], 5, 6, 7, 8])


@KINDS
def test_quantized_weights_of_few_bits_draft_nearly_alike(kind: str) -> None:
    """As a server has them, whose targets are of 16 bits."""
    target = make_gpu(kind, None, HALF, INT8)
    [result] = target.verify((target.open(), PROMPT, []))
    check_drafts(result, expected(kind, PROMPT), 0.05)


def test_a_head_that_fails_costs_no_job_its_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in a step of a captured shape, nor in a larger one."""
    target = make_gpu("eagle3", SHAPES)
    _, drafting = gpu_parts("eagle3")
    fail = Mock(side_effect=RuntimeError("the head fails"))
    monkeypatch.setattr(drafting, "run", fail)
    for context in (TOKENS[:5], TOKENS[:5], PROMPT):
        [result] = target.verify((target.open(), context, []))
        assert result.tokens == expected("eagle3", context).tokens
    # It is not tried again.
    assert fail.call_count == 1


def test_nothing_is_kept_of_sequences_that_do_not_use_the_head(monkeypatch: pytest.MonkeyPatch) -> None:
    target = make_gpu("eagle3")
    _, drafting = gpu_parts("eagle3")
    run = Mock()
    monkeypatch.setattr(drafting, "run", run)
    target.verify((target.open(uses_head=False), TOKENS[:5], []))
    assert run.call_count == 0


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_forward_passes_are_timed_by_rows(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_drafting, "TIMED_ROWS", (1, 2, 64))
    monkeypatch.setattr(head_drafting, "REPEATS", 1)
    _, drafting = gpu_parts(kind)
    (_, first_s), (num_rows, second_s) = drafting.measure(0)
    assert num_rows == 2
    assert 0 < first_s <= second_s


@pytest.mark.parametrize("kind", ["eagle3", "eagle", "dflash"])
def test_the_largest_forward_pass_is_within_the_longest_context(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, drafting = gpu_parts(kind)
    lengths: list[int] = []
    send = drafting._send

    def spy(batch: Batch, *others: Any) -> Any:
        lengths.append(max(span.position + span.num_tokens for span in batch.spans))
        return send(batch, *others)

    monkeypatch.setattr(drafting, "_send", spy)
    with torch.inference_mode():
        drafting.run_largest(num_drafts=2, max_len=20)
    assert lengths == [20]
