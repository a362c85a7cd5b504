"""Whole generations with toy models: tables of logits by the last token in place of networks.

All that decides a token is the project's own: the servers' jobs, sequences, sampler and
observations, the noise and `accept`. Played in lockstep, many generations a step, and without
a wire, so that thousands take a second. `Rounds` is taken apart into small methods: a bug is
planted by overriding one.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import softmax
from scipy.stats import chi2

from coordinator.acceptance import Outcome, Proposal, RoundNoise, VerifyResult, accept
from draft_server.guessed_propose_job import GuessedProposeJob
from draft_server.parallel_propose_job import ParallelProposeJob
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cpu.linear import PlainLinear
from paceline.engine.cpu.narrow_head import MadeRows, NarrowHead
from paceline.engine.cpu.sampler import CpuSampler
from paceline.engine.sampling.logprobs import RowLogprobs, compute_logprobs, with_confidence
from paceline.engine.sampling.shared_vocabulary import sample_rows
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.engine.scheduling.job import Job
from paceline.sampling_params import SamplingParams
from paceline.serving.entropy import EntropyStop
from paceline.serving.propose_job import ProposeJob, ProposeSpec, Support
from paceline.speculation_params import DraftMode, EntropyAdaptive, Rule, SpeculationParams
from paceline.vocabulary import SharedVocabulary
from target_server.verify_job import VerifyJob, VerifySpec

# [vocab_size, vocab_size]: the next token's logits by the last token; a draft's may end with rows for masks.
Table = NDArray[np.float32]
# Cells that expect fewer are pooled: far out in its tail chi-square is right for full cells alone.
MIN_EXPECTED = 15
NO_BLOCKS = BlockPool(1, 1, lambda sources, destinations: None)


@dataclass(frozen=True, eq=False)
class Toy:
    """Two models and a request."""

    target: Table
    draft: Table
    sampling: SamplingParams
    rule: Rule = Rule.REJECTION
    draft_mode: DraftMode = DraftMode.SAMPLED
    support: Support = field(default_factory=lambda: Support(3, 0.995))
    num_draft_tokens: int = 2
    entropy: EntropyAdaptive | None = None
    min_probability: float = 0.0
    # At which the draft draws; None: as the request.
    draft_temperature: float | None = None
    # The draft's table ends with rows for this many masks: it drafts in one forward pass.
    num_masks: int = 0
    # The guess after each token. The draft checks a chain of them; empty: no guesses.
    guesses: tuple[int, ...] = ()
    # The draft knows so many first tokens and those of its context; 0: all.
    draft_vocab_size: int = 0
    # What the draft, whose table has ids of its own, has in common with the target. It reads nothing else.
    vocabulary: SharedVocabulary | None = None
    prompt: tuple[int, ...] = (0,)
    eos_token_ids: tuple[int, ...] = ()
    num_tokens: int = 4

    @property
    def vocab_size(self) -> int:
        return len(self.target)

    def distribution(self, output: Seq[int]) -> NDArray[np.float64]:
        """The target's distribution of the token after prompt and output, computed plainly: [vocab_size]."""
        sampling = self.sampling
        logits = self.target[[*self.prompt, *output][-1]].astype(np.float64)
        counts = np.bincount(np.array(output, dtype=np.int64), minlength=self.vocab_size)
        logits -= sampling.presence_penalty * (counts > 0) + sampling.frequency_penalty * counts
        if len(output) < sampling.min_tokens:
            logits[list(self.eos_token_ids)] = -np.inf
        if sampling.is_greedy:
            return np.eye(self.vocab_size)[logits.argmax()]
        result: NDArray[np.float64] = softmax(logits / sampling.temperature)
        return result

    @functools.cached_property
    def joint_distribution(self) -> NDArray[np.float64]:
        """The joint distribution of all tokens: [vocab_size] * num_tokens."""
        joint = np.ones((self.vocab_size,) * self.num_tokens)
        for length in range(self.num_tokens):
            for output in itertools.product(range(self.vocab_size), repeat=length):
                distribution = self.distribution(output)
                joint[output] *= distribution.reshape(-1, *(1,) * (self.num_tokens - length - 1))
        return joint


@dataclass(eq=False)
class Generation:
    """What the coordinator knows of one generation, and both servers' caches."""

    seed: int
    tokens: list[int]
    draft: Sequence
    target: Sequence
    # The entropy rule's state; `emas` as this round's proposal reported it.
    ema: float = 0.0
    emas: list[float] = field(default_factory=list)


class Rounds:
    """Plays a toy's generations as the coordinator and both servers do."""

    propose_job: type[ProposeJob] = ProposeJob
    parallel_job: type[ParallelProposeJob] = ParallelProposeJob
    guessed_job: type[GuessedProposeJob] = GuessedProposeJob
    verify_job: type[VerifyJob] = VerifyJob
    draft_sampler: Callable[[], CpuSampler] = CpuSampler
    target_sampler: type[CpuSampler] = CpuSampler

    def __init__(self, toy: Toy) -> None:
        self.toy = toy
        self._draft_sampler, self._target_sampler = self.draft_sampler(), self.target_sampler()
        weight, num_first = torch.from_numpy(toy.draft.T), toy.draft_vocab_size
        rows = MadeRows(weight, lambda rows: PlainLinear(rows, None))
        self._narrow_head = NarrowHead(PlainLinear(weight[:num_first], None), num_first, rows, toy.vocab_size)

    def play(self, seeds: Iterable[int]) -> NDArray[np.int64]:
        """The output of one generation a seed: [num_seeds, num_tokens]."""
        toy, generations = self.toy, [self.open(seed) for seed in seeds]
        end = len(toy.prompt) + toy.num_tokens
        while unfinished := [each for each in generations if len(each.tokens) < end]:
            proposals = self.propose(unfinished)
            verify_results = self.verify(unfinished, proposals)
            for generation, proposal, verify_result in zip(unfinished, proposals, verify_results, strict=True):
                outcome = self.decide(generation, proposal, verify_result)
                generation.tokens += outcome.tokens
                self.advance_ema(generation, outcome)
                self.truncate(generation, proposal, outcome)
        return np.array([generation.tokens[len(toy.prompt) :] for generation in generations])

    def propose(self, generations: list[Generation]) -> list[Proposal]:
        """As in the coordinator, the prompt's own round has no drafts."""
        toy, jobs = self.toy, {}
        for generation in generations:
            num_generated = len(generation.tokens) - len(toy.prompt)
            wanted = min(toy.num_draft_tokens, toy.num_tokens - num_generated - 1)
            if num_generated > 0 and wanted > 0:
                stop = None if toy.entropy is None else EntropyStop(toy.entropy, generation.ema)
                propose_spec = ProposeSpec(
                    wanted, toy.draft_mode, toy.support, stop, toy.min_probability,
                    target_position=len(generation.tokens),
                )  # fmt: skip
                jobs[generation] = self.make_job(generation, propose_spec)
        self.run(list(jobs.values()), toy.draft, self._draft_sampler)
        proposals = []
        for generation in generations:
            result = jobs[generation].result if generation in jobs else None
            generation.emas = [] if result is None else result.entropy_emas
            proposals.append(
                Proposal() if result is None else self.sent(result.tokens, result.supports, result.support_probs)
            )
        return proposals

    def make_job(self, generation: Generation, spec: ProposeSpec) -> ProposeJob:
        tail = self.draft_tail(generation)
        if self.toy.guesses:
            guess = self.guess(tail[-1], spec.num_draft_tokens - 1)
            return self.guessed_job(generation.draft, tail, replace(spec, guess=guess))
        if self.toy.num_masks == 0:
            return self.propose_job(generation.draft, tail, spec)
        mask_ids = [self.toy.vocab_size + index for index in range(self.toy.num_masks)]
        return self.parallel_job(generation.draft, tail, spec, mask_ids)

    def guess(self, newest: int, num_guesses: int) -> list[int]:
        """The chain of guesses after the newest token."""
        chain = [newest]
        for _ in range(num_guesses):
            chain.append(self.toy.guesses[chain[-1]])
        return chain[1:]

    def sent(self, tokens: list[int], supports: list[NDArray[np.int64]], probs: list[NDArray[np.float32]]) -> Proposal:
        """What the draft server answers once its job is done."""
        return Proposal(tokens=tokens, supports=supports, support_probs=probs)

    def verify(self, generations: list[Generation], proposals: list[Proposal]) -> list[VerifyResult]:
        jobs = [
            self.verify_job(
                generation.target,
                self.target_tail(generation),
                VerifySpec(list(proposal.tokens), proposal.supports, proposal.checked_by(self.toy.rule)),
            )
            for generation, proposal in zip(generations, proposals, strict=True)
        ]
        self.run(jobs, self.toy.target, self._target_sampler)
        verify_results = []
        for proposal, result in zip(proposals, (job.result for job in jobs), strict=True):
            outsides = result.complements
            # Tokens without a distribution can only be matched.
            rule = proposal.checked_by(self.toy.rule)
            verify_results.append(
                VerifyResult(
                    tokens=result.tokens,
                    support_probs=[outside.support_probs for outside in outsides],
                    outside_masses=[outside.mass for outside in outsides],
                    outside_tokens=[outside.token for outside in outsides],
                    rule=rule,
                )
            )
        return verify_results

    def decide(self, generation: Generation, proposal: Proposal, verify_result: VerifyResult) -> Outcome:
        return accept(proposal, verify_result, self.noise(generation))

    def noise(self, generation: Generation) -> RoundNoise:
        return RoundNoise(generation.seed, len(generation.tokens))

    def advance_ema(self, generation: Generation, outcome: Outcome) -> None:
        """Over decided positions only: the accepted ones and the next one."""
        if generation.emas:
            generation.ema = generation.emas[: outcome.num_accepted + 1][-1]

    def truncate(self, generation: Generation, proposal: Proposal, outcome: Outcome) -> None:
        """Both caches to all but the newest token at most."""
        fed = generation.tokens[:-1]
        generation.draft.truncate(min(generation.draft.length, len(self.read(fed))))
        generation.target.truncate(min(generation.target.length, len(fed)))

    def read(self, tokens: list[int]) -> list[int]:
        """The draft's own tokens for the target's."""
        return tokens if self.toy.vocabulary is None else self.toy.vocabulary.to_draft(tokens)

    def draft_tail(self, generation: Generation) -> list[int]:
        tokens = self.read(generation.tokens)
        # The newest token may be none there.
        generation.draft.truncate(min(generation.draft.length, len(tokens) - 1))
        return tokens[generation.draft.length :]

    def target_tail(self, generation: Generation) -> list[int]:
        return generation.tokens[generation.target.length :]

    def logits(self, job: Job, row: int, table: Table) -> NDArray[np.float32]:
        """What the model says at one of a job's pending rows: [vocab_size]."""
        return table[job.pending[row]]

    def run(self, jobs: Seq[ProposeJob | VerifyJob], table: Table, sampler: CpuSampler) -> None:
        """Engine steps until all jobs are done, all rows pending in one step, as a runner does."""
        while jobs:
            wanted = [job.specs(len(job.pending)) for job in jobs]
            flat = [spec for of_job in wanted for spec in of_job if spec is not None]
            rows = [
                self.logits(job, row, table)
                for job, of_job in zip(jobs, wanted, strict=True)
                for row, spec in enumerate(of_job)
                if spec is not None
            ]
            logits = torch.from_numpy(np.stack(rows))  # [num_draws, vocab_size]
            if self.toy.draft_vocab_size and table is self.toy.draft:
                places = [
                    (job, row)
                    for job, of_job in zip(jobs, wanted, strict=True)
                    for row, spec in enumerate(of_job)
                    if spec
                ]
                samples = self.sample_narrowly(places, logits, flat, sampler)
                sampled = with_confidence(logits, flat, samples)
                results: Iterator[tuple[Sample, RowLogprobs | None]] = zip(
                    sampled, compute_logprobs(logits, flat, samples), strict=True
                )
            else:
                results = sample_rows(sampler, logits, flat)
            for job, of_job in zip(jobs, wanted, strict=True):
                job.sequence.tokens += job.pending
                job.pending.clear()
                mine = [next(results) for spec in of_job if spec is not None]
                seen = [logprobs for _, logprobs in mine if logprobs is not None]
                if seen:
                    job.absorb_logprobs(seen)
                job.absorb([value for value, _ in mine])
            jobs = [job for job in jobs if not job.is_done]

    def sample_narrowly(
        self, places: Seq[tuple[Job, int]], logits: torch.Tensor, specs: Seq[SampleSpec], sampler: CpuSampler
    ) -> list[Sample]:
        """As a draft server does whose head knows some tokens. `places`: each row's job and pending row; logits: of all."""
        self._narrow_head.hold(places)
        last = np.array([job.pending[row] for job, row in places])
        logits[:] = self._narrow_head.to_full_vocab(
            self._narrow_head(np.eye(len(self.toy.draft), dtype=np.float32)[last])
        )
        return sampler.sample(logits, specs)

    def open(self, seed: int) -> Generation:
        """Both caches are empty."""
        toy = self.toy
        sampling = replace(toy.sampling, seed=seed)
        draft_sampling = SpeculationParams(draft_temperature=toy.draft_temperature).draft_sampling(sampling)
        draft, target = (
            Sequence(SequenceOptions(each, len(toy.prompt), toy.eos_token_ids, vocabulary=vocabulary), NO_BLOCKS)
            for each, vocabulary in ((draft_sampling, toy.vocabulary), (sampling, None))
        )
        return Generation(seed, list(toy.prompt), draft, target)


def p_values(toy: Toy, tokens: NDArray[np.int64]) -> dict[str, float]:
    """How likely outputs as far off the exact distribution as these are: per position, per pair in a row, and all together."""
    num_tokens = toy.num_tokens
    views: list[tuple[int, ...]] = [(position,) for position in range(num_tokens)]
    views += [(position, position + 1) for position in range(num_tokens - 1)]
    views += [tuple(range(num_tokens))]
    return {str(view): _p_value(toy, tokens, view) for view in views}


def _p_value(toy: Toy, tokens: NDArray[np.int64], view: tuple[int, ...]) -> float:
    """Chi-square. What can't be, but is, has likelihood 0."""
    others = tuple(set(range(toy.num_tokens)) - set(view))
    expected = toy.joint_distribution.sum(axis=others).reshape(-1) * len(tokens)
    cells = np.ravel_multi_index(tuple(tokens[:, view].T), (toy.vocab_size,) * len(view))
    counts = np.bincount(cells, minlength=len(expected))
    if counts[expected == 0].any():
        return 0.0
    rare = expected < MIN_EXPECTED
    counts, expected = np.append(counts[~rare], counts[rare].sum()), np.append(expected[~rare], expected[rare].sum())
    if expected[-1] < MIN_EXPECTED:
        # Too few even together: they join the least of the others.
        least = expected[:-1].argmin()
        counts[least] += counts[-1]
        expected[least] += expected[-1]
        counts, expected = counts[:-1], expected[:-1]
    if len(counts) == 1:
        return 1.0
    return float(chi2.sf(((counts - expected) ** 2 / expected).sum(), len(counts) - 1))
