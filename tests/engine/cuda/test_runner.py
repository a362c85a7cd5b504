"""The GPU engine's runner takes jobs to the same results as the CPU engine's."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cpu.runner import CpuRunner
from paceline.engine.cuda.forward_plan import ForwardShape
from paceline.engine.cuda.graph_shapes import GraphShapes
from paceline.engine.cuda.runner import CudaRunner
from paceline.engine.scheduling.job import Job
from paceline.sampling_params import SamplingParams
from paceline.serving.propose_job import ProposeJob, ProposeSpec, Support
from paceline.speculation_params import DraftMode, Rule
from target_server.verify_job import VerifyJob, VerifySpec
from tests.engine.cuda.device import DEVICE
from tests.engine.cuda.feeding import GpuFeeder
from tests.engine.feeding import load_llama

TOKENS = [int(token) for token in np.random.default_rng(0).integers(512, size=60)]
SUPPORT = Support(64, 0.995)
SAMPLED = SamplingParams(temperature=0.9, seed=7)
CAPTURES = GraphShapes(num_rows=8, num_tokens=256, num_ahead=3)


class Engine:
    """A runner with a pool."""

    def __init__(self, runner: Any, copy_blocks: Callable[[list[int], list[int]], None]) -> None:
        self.runner, self.num_steps = runner, 0
        self._pool = BlockPool(31, 16, copy_blocks)

    def sequence(self, sampling: SamplingParams, tokens: list[int]) -> Sequence:
        """With `tokens` in the cache and room for more."""
        made = Sequence(SequenceOptions(sampling, len(tokens), ()), self._pool)
        made.reserve(len(tokens) + 24)
        self.run([VerifyJob(made, list(tokens), VerifySpec([], [], Rule.MATCH))])
        return made

    def run(self, jobs: list[Job]) -> list[Any]:
        while any(job.pending for job in jobs):
            self.runner.step([(job, len(job.pending)) for job in jobs if job.pending])
            self.num_steps += 1
        return [job.result for job in jobs]


def make_gpu(num_ahead: int = 3) -> Engine:
    """With a pool of its own: what is in the cache is left from others."""
    feeder, runner = warm_runner(num_ahead)
    return Engine(runner, feeder.attention.copy_blocks)


@functools.cache
def warm_runner(num_ahead: int) -> tuple[GpuFeeder, CudaRunner]:
    """Triton's interpreter takes seconds to run all graphs once."""
    feeder = GpuFeeder.of("dummy:tiny", torch.float32, num_layers=1)
    graph_shapes = GraphShapes(CAPTURES.num_rows, CAPTURES.num_tokens, num_ahead)
    runner = CudaRunner(feeder.model, feeder.attention, True, graph_shapes, DEVICE)
    runner.warm_up()
    return feeder, runner


def make_cpu() -> Engine:
    model = load_llama("dummy:tiny", num_layers=1)
    attention = model.make_cache(32, 16)
    return Engine(CpuRunner(model, attention), attention.copy_blocks)


WISHES = {
    "greedy": (SamplingParams(seed=1), ProposeSpec(4, DraftMode.GREEDY, SUPPORT)),
    "sampled": (SAMPLED, ProposeSpec(4, DraftMode.SAMPLED, SUPPORT)),
    "coupled": (SAMPLED, ProposeSpec(3, DraftMode.COUPLED, SUPPORT)),
    "top-p": (SamplingParams(temperature=0.9, seed=7, top_p=0.8, top_k=100), ProposeSpec(4, DraftMode.SAMPLED, SUPPORT)),
    "more tokens than are looked at": (
        SamplingParams(temperature=3.0, seed=7, top_p=0.995), ProposeSpec(4, DraftMode.SAMPLED, SUPPORT)
    ),
    "with penalties": (
        SamplingParams(temperature=0.9, seed=7, repetition_penalty=1.5), ProposeSpec(4, DraftMode.SAMPLED, SUPPORT)
    ),
    "one token": (SAMPLED, ProposeSpec(1, DraftMode.SAMPLED, SUPPORT)),
}  # fmt: skip


def propose_all(engine: Engine, names: list[str]) -> list[Any]:
    """These wishes at once, from contexts of different lengths."""
    jobs: list[Job] = []
    for index, (sampling, propose_spec) in enumerate(WISHES[name] for name in names):
        sequence = engine.sequence(sampling, TOKENS[: 10 + 5 * index])
        jobs.append(ProposeJob(sequence, TOKENS[50:52], propose_spec))
    return engine.run(jobs)


def some_or_all(some: list[str], everything: dict[str, Any]) -> pytest.MarkDecorator:
    """Triton's interpreter takes seconds for each: some of them for `make test`."""
    every = pytest.param(list(everything), marks=pytest.mark.campaign, id="all")
    return pytest.mark.parametrize("names", [pytest.param(some, id="some"), every])


@some_or_all(["coupled", "with penalties"], WISHES)
def test_proposals_are_the_cpu_engines(names: list[str]) -> None:
    for ours, theirs in zip(propose_all(make_gpu(), names), propose_all(make_cpu(), names), strict=True):
        assert ours.tokens == theirs.tokens
        for one, other in zip(ours.supports, theirs.supports, strict=True):
            assert one.tolist() == other.tolist()
        for one, other in zip(ours.support_probs, theirs.support_probs, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("num_ahead", [pytest.param(3, marks=pytest.mark.campaign), 0])
def test_what_a_table_can_not_draw_is_drawn_step_by_step(num_ahead: int) -> None:
    sampling, propose_spec = WISHES["more tokens than are looked at"]
    expected = make_cpu()
    [theirs] = expected.run([ProposeJob(expected.sequence(sampling, TOKENS[:14]), TOKENS[50:52], propose_spec)])
    engine = make_gpu(num_ahead)
    sequence = engine.sequence(sampling, TOKENS[:14])
    engine.num_steps = 0
    [ours] = engine.run([ProposeJob(sequence, TOKENS[50:52], propose_spec)])
    assert (ours.tokens, engine.num_steps) == (theirs.tokens, propose_spec.num_draft_tokens)


@pytest.mark.campaign
@pytest.mark.parametrize("name", ["coupled", "greedy", "sampled", "top-p"])
def test_steps_in_one_go_are_those_one_by_one(name: str) -> None:
    """And leave the same cache behind: what is drafted after them is the same too."""
    sampling, propose_spec = WISHES[name]
    results = []
    for num_ahead, num_steps in ((3, 1), (1, 2), (0, propose_spec.num_draft_tokens)):
        engine = make_gpu(num_ahead)
        sequence = engine.sequence(sampling, TOKENS[:14])
        engine.num_steps = 0
        [first] = engine.run([ProposeJob(sequence, TOKENS[50:52], propose_spec)])
        assert engine.num_steps == num_steps
        sequence.truncate(17)
        [second] = engine.run([ProposeJob(sequence, TOKENS[52:53], propose_spec)])
        results.append((first.tokens, second.tokens, sequence.tokens))
    assert results[0] == results[1] == results[2]


def check_of(rule: Rule) -> VerifySpec:
    drafts = TOKENS[40:44]
    supports = [np.unique([draft, 3, 200 + draft // 4]) for draft in drafts] if rule is Rule.REJECTION else []
    return VerifySpec(drafts, supports, rule)


CHECKS = {
    "greedy": (SamplingParams(seed=1), check_of(Rule.MATCH)),
    "coupled": (SAMPLED, check_of(Rule.MATCH)),
    "rejection": (SAMPLED, check_of(Rule.REJECTION)),
    "rejection, top-p": (SamplingParams(temperature=0.9, seed=7, top_p=0.8), check_of(Rule.REJECTION)),
    "plain": (SAMPLED, VerifySpec([], [], Rule.REJECTION)),
    "with log-probabilities": (SamplingParams(seed=1), VerifySpec(TOKENS[40:43], [], Rule.MATCH, num_logprobs=3)),
    "lenient": (SamplingParams(seed=1), VerifySpec(TOKENS[40:43], [], Rule.MATCH, lenience=0.1)),
}


def verify_all(engine: Engine, names: list[str]) -> list[Any]:
    jobs: list[Job] = []
    for index, (sampling, check) in enumerate(CHECKS[name] for name in names):
        jobs.append(VerifyJob(engine.sequence(sampling, TOKENS[: 12 + 3 * index]), TOKENS[50:51], check))
    return engine.run(jobs)


@some_or_all(["rejection", "coupled", "lenient"], CHECKS)
def test_verify_results_are_the_cpu_engines(names: list[str]) -> None:
    """More rows than there are graphs for, and of all kinds: those that tables can't say among them."""
    for ours, theirs in zip(verify_all(make_gpu(), names), verify_all(make_cpu(), names), strict=True):
        assert ours.tokens == theirs.tokens
        assert ours.lenient_accepts == theirs.lenient_accepts
        for one, other in zip(ours.complements, theirs.complements, strict=True):
            assert one.token == other.token
            assert one.mass == pytest.approx(other.mass, rel=1e-4)
            np.testing.assert_allclose(one.support_probs, other.support_probs, rtol=1e-3, atol=1e-6)
        for one, other in zip(ours.logprobs, theirs.logprobs, strict=True):
            assert one.top_ids.tolist() == other.top_ids.tolist()
            np.testing.assert_allclose(one.top, other.top, rtol=1e-4)


def test_a_prompt_may_be_read_in_parts() -> None:
    """The first of them wants no logits, and is longer than any graph."""
    verify_results = []
    for engine in (make_gpu(), make_cpu()):
        sequence = engine.sequence(SAMPLED, TOKENS[:5])
        job = VerifyJob(sequence, TOKENS[5:20], VerifySpec([], [], Rule.MATCH))
        engine.runner.step([(job, 10)])
        verify_results.append(engine.run([job])[0].tokens)
    assert verify_results[0] == verify_results[1]


def test_shapes_are_rounded_up() -> None:
    """So that a few graphs serve all rounds: those of 7 rows and of 8 rows run in one program."""
    engine = make_gpu()
    programs = []
    for length, num_drafts in ((5, 6), (9, 7), (14, 6)):
        sequence = engine.sequence(SAMPLED, TOKENS[:length])
        engine.run([VerifyJob(sequence, TOKENS[50:51], VerifySpec(TOKENS[40 : 40 + num_drafts], [], Rule.MATCH))])
        programs.append(engine.runner.last)
    assert programs[0].shape == ForwardShape(8, 8, 8, 2)
    assert programs[0] is programs[1] is programs[2]
