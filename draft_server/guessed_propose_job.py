"""The job of a Propose command with guesses of the draft's own next tokens, which one forward pass checks.

A draft for the draft (Leviathan, Kalman, Matias 2211.17192, section 6). The guesses follow the tail:

    token     newest token of the tail | guess 0 | guess 1 | …
    gives     draft 0                  | draft 1 | draft 2 | …

Each draft is sampled from the same distribution and with the same noise as step by step, and counts only if every draft
before it equals the guess that was fed. So the proposal is the draft model's own, and no guess changes the
output.
"""

from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.serving.propose_job import ProposeJob, ProposeSpec, token_of


def draft_by_guesses(sequence: Sequence, tail: list[int], spec: ProposeSpec) -> "GuessedProposeJob | None":
    """Returns None unless there are guesses by the ids of the drafts; a grammar and the entropy rule decide draft by draft."""
    is_stepwise = spec.entropy is not None or sequence.guide is not None
    if not spec.guess or spec.num_draft_tokens == 1 or is_stepwise or sequence.options.vocabulary is not None:
        return None
    return GuessedProposeJob(sequence, tail, spec)


class GuessedProposeJob(ProposeJob):
    def __init__(self, sequence: Sequence, tail: list[int], spec: ProposeSpec) -> None:
        super().__init__(sequence, tail, spec)
        # Of k drafts, k - 1: no draft depends on a later one.
        self._guess = list(spec.guess[: spec.num_draft_tokens - 1])
        self.pending = [*tail, *self._guess]
        self._is_checking = True

    def specs(self, num_tokens: int) -> list[SampleSpec | None]:
        if not self._is_checking:
            return super().specs(num_tokens)
        # The row of draft 0; below 0 once it is fed.
        first = len(self.pending) - 1 - len(self._guess)
        return [self._spec(row, row - first) if row >= first else None for row in range(num_tokens)]

    def multi_step_specs(self) -> list[SampleSpec]:
        # The next step may have to feed another row's sample than the last one's.
        return [] if self._is_checking else super().multi_step_specs()

    def absorb(self, samples: list[Sample]) -> None:
        if not self._is_checking:
            super().absorb(samples)
            return
        for index, sample in enumerate(samples, start=len(self._samples)):
            goes_on = self._keep(sample) and index + 1 < self._propose_spec.num_draft_tokens
            if not goes_on or self._guess[index : index + 1] != [token_of(sample)]:
                self._end_check([token_of(sample)] if goes_on else [])
                return

    def _end_check(self, pending: list[int]) -> None:
        self._is_checking = False
        self.sequence.rollback(self._round_start + len(self._samples) - 1)
        self.pending = pending
