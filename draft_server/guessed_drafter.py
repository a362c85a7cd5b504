"""The job of a Propose command with guesses of the draft's own next tokens, which one forward checks.

A draft for the draft (Leviathan, Kalman, Matias 2211.17192, section 6). The guesses follow the tail:

    token     newest token of the tail | guess 0 | guess 1 | …
    gives     draft 0                  | draft 1 | draft 2 | …

Each draft is sampled from the same distribution and with the same noise as step by step, and counts only if every draft
before it equals the guess that was fed. So the proposal is the draft model's own, and no guess changes the
output.
"""

from draft_server.drafter import ProposeJob, ProposeSpec, token_of
from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.specs import Sample, SampleSpec


def can_check_guesses(guess: list[int], sequence: Sequence, spec: ProposeSpec) -> bool:
    """Whether there are guesses by the ids of the drafts, and no entropy rule, which decides draft by draft."""
    is_own = sequence.options.vocabulary is None
    return bool(guess) and spec.num_draft_tokens > 1 and spec.entropy is None and is_own


class GuessedProposeJob(ProposeJob):
    def __init__(self, sequence: Sequence, tail: list[int], spec: ProposeSpec, guess: list[int]) -> None:
        """`guess`: tokens after the tail, at most k - 1 for k drafts: no draft depends on a later one."""
        super().__init__(sequence, tail, spec)
        self._guess = guess[: spec.num_draft_tokens - 1]
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
