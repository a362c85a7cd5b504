"""A job: the tokens that a command feeds to the model, and their sample specs.

Chunked prefill, drafting, verification and replay are all jobs.
"""

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.logprobs import RowLogprobs
from paceline.engine.sampling.specs import Sample, SampleSpec, TokensBefore
from paceline.grammar import Guide, Mask, is_dead_end


@dataclass(slots=True)
class NextDrafts:
    """What a model with a draft head drafts behind a job's newest token, which is not in the cache."""

    num_asked: int
    # Stops once the product of the drafts' confidences falls below this.
    min_probability: float
    # Of the first draft; the newest token is at the position before.
    position: int
    newest: int
    # Of the draft at a position.
    spec: Callable[[int], SampleSpec]
    # Under a grammar: finds what may follow these drafts, for the next one's spec, and whether any draft may.
    may_follow: Callable[[list[int]], bool] | None = None
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)

    def add(self, token: int, confidence: float) -> bool:
        """Adds a draft. Returns whether another one is wanted."""
        self.tokens.append(token)
        self.confidences.append(confidence)
        if len(self.tokens) == self.num_asked or math.prod(self.confidences) < self.min_probability:
            return False
        return self.may_follow is None or self.may_follow(self.tokens)


class Job(ABC):
    """Base of ProposeJob and VerifyJob, which the model servers run, and of ReadJob."""

    def __init__(self, sequence: Sequence, tokens: list[int]) -> None:
        self.sequence = sequence
        # The command's position: the cache's length before it took over cached blocks. A Truncate to this length or a
        # smaller one drops the job, and a failed job leaves the cache at this length.
        self.start = sequence.length
        # Tokens that are not fed yet, in order.
        self.pending = tokens
        # Tokens of the command that the cache already held (prefix caching).
        self.num_cached_tokens = 0
        # When the command arrived (time.perf_counter).
        self.arrived_s = time.perf_counter()
        self._computed_s = 0.0
        # Of that, the draft head's part.
        self.drafting_s = 0.0
        # What it raised when it took its samples.
        self.failure: Exception | None = None

    @abstractmethod
    def specs(self, num_tokens: int) -> list[SampleSpec | None]:
        """Returns the specs of the first `num_tokens` pending tokens; None if a token's logits do not matter."""

    def multi_step_specs(self) -> list[SampleSpec]:
        """Returns the specs of the steps after the one that feeds all of `pending`, one per step.

        These steps run without returning to the worker, so each may depend only on the token that the previous step
        sampled.
        """
        return []

    def take(self, num_tokens: int, samples: list[Sample], row_logprobs: list[RowLogprobs]) -> None:
        """Takes the results of a step that has fed the first `num_tokens` pending tokens. Raises nothing: see `failure`."""
        self.sequence.append(self.pending[:num_tokens])
        del self.pending[:num_tokens]
        try:
            self.absorb_logprobs(row_logprobs)
            self.absorb(samples)
        except Exception as error:
            self.failure = error
            self.pending = []

    @abstractmethod
    def absorb_logprobs(self, row_logprobs: list[RowLogprobs]) -> None:
        """Takes the log-probabilities of this step, before `absorb`."""

    @abstractmethod
    def absorb(self, samples: list[Sample]) -> None:
        """Takes the samples of tokens that had a spec, after their log-probabilities."""

    @property
    @abstractmethod
    def result(self) -> Any:
        """The answer, once `is_done`."""

    def on_finish(self) -> None:  # noqa: B027 most jobs have no one to tell
        """Called once `is_done`, before the answer goes out."""

    @property
    def next_drafts(self) -> NextDrafts | None:
        """What the model's draft head is to add, once `is_done`."""
        return None

    def tokens_before(self, row: int) -> TokensBefore | None:
        """Returns the tokens up to pending token `row`; None if the request has no penalties."""
        options = self.sequence.options
        if not options.sampling.has_penalties:
            return None
        tokens = self.sequence.tokens + self.pending[: row + 1]
        prompt, output = tokens[: options.num_prompt_tokens], tokens[options.num_prompt_tokens :]
        if options.vocabulary is not None:
            prompt, output = options.vocabulary.to_target(prompt), options.vocabulary.to_target(output)
        return TokensBefore(prompt, output)

    def mask(self, row: int, position: int) -> tuple[Mask | None, bool]:
        """Returns the tokens that may follow pending token `row`, at `position`, and whether the text is at a dead end there.

        The mask is None without a grammar, or if the request's token lists exclude all of it; a sample is then meaningless.
        That is a dead end unless the text is over. Raises InvalidArgument.
        """
        guide = self.sequence.guide
        return (None, False) if guide is None else self.mask_after(guide, self.completion(row), position)

    def mask_after(self, guide: Guide, completion: list[int], position: int) -> tuple[Mask | None, bool]:
        options = self.sequence.options
        mask, banned = guide.mask(completion), (*options.sampling.banned_token_ids, *options.banned_token_ids(position))
        if not is_dead_end(mask, options.sampling.allowed_token_ids, banned):
            return mask, False
        return None, not guide.is_over(completion)

    def completion(self, row: int) -> list[int]:
        """Returns the tokens after the prompt, up to pending token `row`; -1: those fed."""
        num_before = self.sequence.options.num_prompt_tokens
        fed = self.sequence.tokens
        behind = self.pending[max(0, num_before - len(fed)) : row + 1]
        return fed[num_before:] + behind

    @property
    def is_alike_everywhere(self) -> bool:
        """Whether what may be sampled is the same at each position: no penalties, no min_tokens, no grammar."""
        sampling = self.sequence.options.sampling
        return sampling.min_tokens == 0 and not sampling.has_penalties and self.sequence.guide is None

    @property
    def is_done(self) -> bool:
        return not self.pending

    @property
    def expects_peer_work(self) -> bool:
        """Whether the sequence's next job is likely to run on the other model server."""
        return True

    def count_step(self, duration_s: float) -> None:
        self._computed_s += duration_s

    def count_drafting(self, duration_s: float) -> None:
        """Counts what a draft head took of a step that is still to be counted."""
        self.drafting_s += duration_s

    @property
    def queued_us(self) -> int:
        """Microseconds since the command's arrival, minus this job's engine steps."""
        return max(0, int((time.perf_counter() - self.arrived_s - self._computed_s) * 1e6))

    @property
    def compute_us(self) -> int:
        """Microseconds of this job's engine steps, without the draft head's part."""
        return int((self._computed_s - self.drafting_s) * 1e6)

    @property
    def drafting_us(self) -> int:
        """Microseconds that a draft head took of this job's engine steps."""
        return int(self.drafting_s * 1e6)


class ReadJob(Job):
    """Reads tokens for requests to come. Nobody waits for it."""

    def specs(self, num_tokens: int) -> list[SampleSpec | None]:
        return [None] * num_tokens

    def absorb_logprobs(self, row_logprobs: list[RowLogprobs]) -> None:
        pass

    def absorb(self, samples: list[Sample]) -> None:
        pass

    @property
    def result(self) -> Any:
        return None

    @property
    def expects_peer_work(self) -> bool:
        return False
