"""Which tokens a draft head may draft behind a round, by the request's grammar."""

from paceline.engine.scheduling.job import Job
from paceline.errors import InvalidArgument
from paceline.grammar import Guide, Mask


class DraftMasks:
    """Leads the drafts of one round. They begin with the tokens that are forced there, so that the head reads them."""

    def __init__(self, job: Job, guide: Guide, completion: list[int], position: int) -> None:
        """completion: up to the round's newest token. position: of the first draft."""
        self._job, self._guide, self._completion, self._position = job, guide, completion, position
        # Of the next draft.
        self.mask: Mask | None = None

    def has_choice(self, most: int) -> bool:
        """Begins. Returns whether one of the first `most` drafts is not forced: the coordinator appends forced tokens itself."""
        try:
            forced = self._forced_run(most)
        except InvalidArgument:
            return False
        return len(forced) < most and self.may_follow(forced) and (not forced or self.may_follow([]))

    def may_follow(self, drafts: list[int]) -> bool:
        """Finds the mask behind these drafts. Returns whether any draft may follow: none does at the text's end."""
        try:
            self.mask = self._find(drafts)
        except InvalidArgument:
            # The grammar is at a limit, which only matters if the text comes here.
            self.mask = None
        return self.mask is not None

    def _find(self, drafts: list[int]) -> Mask | None:
        completion = [*self._completion, *drafts]
        # A guide ignores the token that ends a text.
        if completion[-1] in self._job.sequence.options.eos_token_ids or self._guide.is_over(completion):
            return None
        mask, _ = self._job.mask_after(self._guide, completion, self._position + len(drafts))
        return mask

    def _forced_run(self, most: int) -> list[int]:
        forced: list[int] = []
        while len(forced) < most and (token := self._guide.forced([*self._completion, *forced])) is not None:
            forced.append(token)
        return forced
