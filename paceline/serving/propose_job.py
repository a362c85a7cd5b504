"""The job of a Propose command: feeds the tail, then drafts token by token."""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import (
    Argmax,
    ConfidentSample,
    GumbelMax,
    Sample,
    SampleSpec,
    SampleTruncated,
    TruncatedSample,
)
from paceline.engine.scheduling.job import Job
from paceline.grammar import Guide
from paceline.noise import Purpose, make_key, match_key, uniform
from paceline.serving.entropy import EntropyStop
from paceline.speculation_params import MAX_DRAFT_TOKENS, DraftMode


@dataclass(frozen=True, slots=True)
class Support:
    """Limits of a support, the token ids on which q is not zero: at most `max_size` ids with mass `min_mass`."""

    max_size: int
    min_mass: float


@dataclass(frozen=True, slots=True)
class ProposeSpec:
    """What to propose."""

    num_draft_tokens: int
    draft_mode: DraftMode
    support: Support
    # The entropy rule; None: never stop early.
    entropy: EntropyStop | None = None
    # Stops once the product of the drafts' confidences falls below this; 0: never stop early.
    min_probability: float = 0.0
    # Under a grammar: the most tokens that are not forced.
    max_choices: int = MAX_DRAFT_TOKENS
    # Position of the first draft in the target's context; None: the same as in the draft model's.
    target_position: int | None = None
    # Position of the round's first draft there; None: that of the first draft here.
    round_start: int | None = None
    # Guesses of the drafts, which a draft method may check.
    guess: Seq[int] = ()


@dataclass(frozen=True, slots=True)
class ProposeJobResult:
    """Drafted tokens. In draft mode `sampled` each token also has its support, and q on it."""

    tokens: list[int]
    # Position of the first one.
    first_position: int
    supports: list[NDArray[np.int64]]  # [support_size] each
    support_probs: list[NDArray[np.float32]]  # [support_size] each
    # With the entropy rule: one value for each drafted position, and one for the position at which it stopped.
    entropies: list[float]
    entropy_emas: list[float]
    # Drafted tokens that are in the cache now.
    num_fed_drafts: int
    # With min_probability: the probability of each token.
    confidences: list[float]
    # Tail tokens that the cache already held.
    cached_tokens: int
    queued_us: int
    compute_us: int


class ProposeJob(Job):
    """Feeds the tail, then one token per step, with the tokens that it forces under a grammar.

    The last of k drafts is not fed: no draft depends on it.
    """

    def __init__(self, sequence: Sequence, tail: list[int], spec: ProposeSpec) -> None:
        super().__init__(sequence, tail)
        self._propose_spec = spec
        # The position of the first draft here, and in the target's context; and the noise's round_start.
        self._round_start = sequence.length + len(tail)
        self._target_position = self._round_start if spec.target_position is None else spec.target_position
        self._noise_start = self._target_position if spec.round_start is None else spec.round_start
        self._samples: list[Sample] = []
        self._num_forced = 0
        self._confidences: list[float] = []
        # The spec of all drafts, if it is the same: one object, which the runner looks at once.
        self._only_spec = self._make_spec(0, 0) if self._is_greedy and self.is_alike_everywhere else None

    def specs(self, num_tokens: int) -> list[SampleSpec | None]:
        is_last = num_tokens == len(self.pending)
        return [None] * (num_tokens - 1) + [self._spec(num_tokens - 1, len(self._samples)) if is_last else None]

    def multi_step_specs(self) -> list[SampleSpec]:
        sampling, guide = self.sequence.options.sampling, self.sequence.guide
        has_steps = self._propose_spec.entropy is None and not sampling.has_penalties and guide is None
        if not has_steps or self.sequence.options.vocabulary is not None:
            return []
        return [self._spec(0, index) for index in range(len(self._samples) + 1, self._propose_spec.num_draft_tokens)]

    def absorb_logprobs(self, row_logprobs: list[RowLogprobs]) -> None:
        for row in row_logprobs:
            assert self._propose_spec.entropy is not None, "only the entropy rule asks for entropies"
            self._propose_spec.entropy.see(row.entropy)

    def absorb(self, samples: list[Sample]) -> None:
        if not samples:
            return
        if self._propose_spec.entropy is not None and not self._propose_spec.entropy.allows(self._num_choices):
            # The stop depends only on distributions, never on this sample. Otherwise it would bias the output.
            return
        token, wanted = token_of(samples[0]), self._propose_spec
        if not self._keep(samples[0]) or len(self._samples) == wanted.num_draft_tokens:
            return
        if self.sequence.guide is None:
            shared = self.sequence.options.vocabulary
            self.pending = [token] if shared is None else shared.to_draft([token])
        elif self._num_choices < wanted.max_choices:
            self._continue(self.sequence.guide, token)

    @property
    def _num_choices(self) -> int:
        return len(self._samples) - self._num_forced

    def _continue(self, guide: Guide, token: int) -> None:
        """Feeds `token` and the tokens that it forces, if another choice fits after them and it can be other than EOS."""
        if token in self.sequence.options.eos_token_ids:
            return
        completion, forced = [*self.completion(-1), token], list[int]()
        while (only := guide.forced(completion)) is not None:
            forced.append(only)
            completion.append(only)
            if len(self._samples) + len(forced) == self._propose_spec.num_draft_tokens:
                return
        if guide.is_over(completion):
            return
        mask, _ = self.mask_after(guide, completion, self.sequence.length + 1 + len(forced))
        if mask is None:
            return
        for only in forced:
            self._keep_forced(only)
        self.pending = [token, *forced]

    def _keep_forced(self, token: int) -> None:
        self._num_forced += 1
        is_certain = self._is_greedy or self._propose_spec.draft_mode is DraftMode.COUPLED
        self._samples.append(token if is_certain else TruncatedSample(token, np.array([token]), np.ones(1, np.float32)))
        if self._propose_spec.min_probability > 0:
            self._confidences.append(1.0)
        if self._propose_spec.entropy is not None:
            self._propose_spec.entropy.skip()

    def _keep(self, sample: Sample) -> bool:
        """Appends a draft. Returns whether the model is confident enough to continue.

        Dropping the last token for its value would bias the output, so it is kept.
        """
        self._samples.append(sample)
        if self._propose_spec.min_probability == 0:
            return True
        self._confidences.append(_confidence(sample))
        return math.prod(self._confidences) >= self._propose_spec.min_probability

    @property
    def result(self) -> ProposeJobResult:
        truncated = [sample for sample in self._samples if isinstance(sample, TruncatedSample)]
        entropy = self._propose_spec.entropy
        return ProposeJobResult(
            tokens=[token_of(sample) for sample in self._samples],
            first_position=self._round_start,
            supports=[sample.support for sample in truncated],
            support_probs=[sample.probs for sample in truncated],
            entropies=entropy.entropies if entropy is not None else [],
            entropy_emas=entropy.emas if entropy is not None else [],
            num_fed_drafts=self.sequence.length - self._round_start,
            confidences=self._confidences,
            cached_tokens=self.num_cached_tokens,
            queued_us=self.queued_us,
            compute_us=self.compute_us,
        )

    @property
    def _is_greedy(self) -> bool:
        return self._propose_spec.draft_mode is DraftMode.GREEDY or self.sequence.options.sampling.is_greedy

    def _spec(self, row: int, index: int) -> SampleSpec:
        return self._only_spec or self._make_spec(row, index)

    def _make_spec(self, row: int, index: int) -> SampleSpec:
        options, wanted = self.sequence.options, self._propose_spec
        position = self._round_start + index
        common = options.sampling, options.banned_token_ids(position)
        extra: Any = {
            "before": self.tokens_before(row),
            "wants_entropy": wanted.entropy is not None,
            "wants_confidence": wanted.min_probability > 0,
            "mask": self.mask(row, position)[0],
            "vocabulary": options.vocabulary,
        }
        noise_position = self._target_position + index
        if self._is_greedy:
            return Argmax(*common, **extra)
        if wanted.draft_mode is DraftMode.COUPLED:
            return GumbelMax(*common, match_key(options.seed, noise_position), **extra)
        key = make_key(options.seed, self._noise_start, noise_position, Purpose.DRAFT)
        return SampleTruncated(*common, uniform(key), wanted.support.max_size, wanted.support.min_mass, **extra)


def token_of(sample: Sample) -> int:
    if isinstance(sample, int):
        return sample
    assert isinstance(sample, ConfidentSample | TruncatedSample)
    return sample.token


def _confidence(sample: Sample) -> float:
    match sample:
        case ConfidentSample():
            return sample.confidence
        case TruncatedSample():
            return float(sample.probs[sample.support == sample.token].sum())
        case _:
            return 1.0
