"""A step's memory: however many tokens are sampled, few have logits at a time."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cpu import head_sampler, runner
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.narrow_head import NarrowHead
from paceline.engine.cpu.runner import CpuRunner
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import Argmax, GumbelMax, Sample, SampleSpec
from paceline.engine.scheduling.job import Job
from paceline.sampling_params import SamplingParams
from tests.engine.feeding import load_llama, load_modules, load_part

BLOCK_SIZE, NUM_TOKENS = 16, 25
# Of the whole vocabulary, as torch samples it.
WHOLE = SamplingParams(temperature=1.0, min_p=1e-300, seed=1)


class Sampled(Job):
    """Samples at each token, with log-probabilities."""

    def __init__(self, sequence: Sequence, tokens: list[int]) -> None:
        super().__init__(sequence, tokens)
        self.samples: list[Sample] = []
        self.chosen: list[float] = []

    def specs(self, num_tokens: int) -> list[SampleSpec | None]:
        kinds = [Argmax(WHOLE, (), num_logprobs=1), GumbelMax(WHOLE, (), 7, num_logprobs=0), None]
        return [kinds[row % 3] for row in range(num_tokens)]

    def absorb_logprobs(self, row_logprobs: list[RowLogprobs]) -> None:
        self.chosen += [float(each.chosen[0]) for each in row_logprobs]

    def absorb(self, samples: list[Sample]) -> None:
        self.samples += samples

    @property
    def result(self) -> Any:
        return self.samples, self.chosen


def load_draft(name: str) -> CpuLlama:
    """A draft model whose head knows the first ids and each row's own context."""
    config, tensors = load_part(name, torch.bfloat16)
    model = CpuLlama(config, tensors, "none", config.max_model_len, batch_invariant=False, draft_vocab_size=10)
    assert isinstance(model.head, NarrowHead)
    return model


def test_a_draft_head_that_fails_costs_no_job_its_result() -> None:
    model = load_llama("dummy:tiny")
    attention = model.make_cache(8, BLOCK_SIZE)
    pool = BlockPool(8, BLOCK_SIZE, attention.copy_blocks)

    def forward(batch: Any, attention: Any, plan: Any) -> Any:
        return model.forward_with_states(batch, attention, plan, (1,))

    failing = Mock(forward=forward, run=Mock(side_effect=RuntimeError("the head fails")))
    runner, results = CpuRunner(model, attention, failing), []
    for _ in range(2):
        options = SequenceOptions(SamplingParams(seed=0), NUM_TOKENS, (), uses_draft_head=True)
        sequence = Sequence(options, pool)
        sequence.reserve(NUM_TOKENS)
        job = Sampled(sequence, list(range(NUM_TOKENS)))
        runner.step([(job, NUM_TOKENS)])
        results.append(job.result)
    assert results[0] == results[1]
    # It is not tried again.
    assert failing.run.call_count == 1


@pytest.mark.parametrize("load", [load_llama, load_modules, load_draft])
def test_a_step_holds_few_tokens_logits_and_samples_the_same(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = load("dummy:tiny")
    num_rows: list[int] = []
    logits = model.logits

    def count(rows: Any) -> torch.Tensor:
        num_rows.append(len(rows))
        found: torch.Tensor = logits(rows)
        return found

    monkeypatch.setattr(model, "logits", count)

    def step() -> Any:
        attention = model.make_cache(8, BLOCK_SIZE)
        pool = BlockPool(8, BLOCK_SIZE, attention.copy_blocks)
        jobs = []
        for first in (0, NUM_TOKENS):
            sequence = Sequence(SequenceOptions(SamplingParams(seed=0), NUM_TOKENS, ()), pool)
            sequence.reserve(NUM_TOKENS)
            jobs.append(Sampled(sequence, list(range(first, first + NUM_TOKENS))))
        CpuRunner(model, attention).step([(job, NUM_TOKENS) for job in jobs])
        assert [job.failure for job in jobs] == [None, None]
        return [job.result for job in jobs]

    sampled: list[int] = []
    sample_rows = head_sampler.sample_rows

    def count_sampled(sampler: Any, rows: torch.Tensor, specs: list[SampleSpec]) -> Any:
        sampled.append(len(rows))
        return sample_rows(sampler, rows, specs)

    monkeypatch.setattr(head_sampler, "sample_rows", count_sampled)
    whole = step()
    assert (num_rows, sampled) == ([34], [34])
    num_rows.clear()
    sampled.clear()
    # A product reads the whole head, so it has more rows than a sampler gets.
    monkeypatch.setattr(runner, "LOGITS_BYTES", 12 * 4 * model.config.vocab_size)
    monkeypatch.setattr(runner, "SAMPLED_BYTES", 5 * 4 * model.config.vocab_size)
    assert step() == whole
    assert num_rows == [12, 12, 10]
    assert sampled == [5, 5, 2, 5, 5, 2, 5, 5]
