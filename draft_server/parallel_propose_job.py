"""The job of a Propose command for a model trained to fill masks: all drafts come from one forward pass.

The tail is followed by masks, one fewer than drafts. The draft at a mask is sampled without seeing the drafts before
it, from the q that is returned, so both rules stay exact (PARD, 2504.18583).
"""

from paceline.engine.cache.sequence import Sequence
from paceline.engine.sampling.specs import Sample, SampleSpec
from paceline.serving.propose_job import ProposeJob, ProposeSpec
from paceline.serving.proposing import DraftMethod


def draft_by_masks(num_masks: int, first_mask_id: int) -> DraftMethod:
    """Returns the drafting method of a model whose mask tokens have consecutive ids."""
    mask_ids = [first_mask_id + index for index in range(num_masks)]

    def draft(sequence: Sequence, tail: list[int], spec: ProposeSpec) -> "ParallelProposeJob | None":
        # Penalties, a grammar and the entropy rule depend on the drafts before.
        is_stepwise = sequence.options.sampling.has_penalties or spec.entropy is not None or sequence.guide is not None
        return None if is_stepwise or not mask_ids else ParallelProposeJob(sequence, tail, spec, mask_ids)

    return draft


class ParallelProposeJob(ProposeJob):
    def __init__(self, sequence: Sequence, tail: list[int], spec: ProposeSpec, mask_ids: list[int]) -> None:
        """`mask_ids`: ids of the model's masks, in order."""
        super().__init__(sequence, tail, spec)
        masks = mask_ids[: spec.num_draft_tokens - 1]
        self.pending = [*tail, *masks]
        self._num_drafts = len(masks) + 1
        self._is_sure = True

    def specs(self, num_tokens: int) -> list[SampleSpec | None]:
        # The last pending rows draft; below 0 once some of them are fed.
        first = len(self.pending) - self._num_drafts
        return [self._spec(row, row - first) if row >= first else None for row in range(num_tokens)]

    def multi_step_specs(self) -> list[SampleSpec]:
        return []

    def absorb(self, samples: list[Sample]) -> None:
        for sample in samples:
            if self._is_sure:
                self._is_sure = self._keep(sample)
        if not self.pending:
            self.sequence.truncate(self._round_start)
