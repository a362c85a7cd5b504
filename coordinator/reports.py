"""Details of proposals and verify results for statistics, traces and the policy. Acceptance does not read them."""

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.results import TokenLogprobs


@dataclass(frozen=True, slots=True)
class DraftReport:
    drafter: str = "custom"
    # Shown to users when no tokens are proposed.
    reason: str = ""
    # Number of draft tokens requested.
    num_asked: int = 0
    # Name of the draft model that proposed, if one did.
    draft_model: str = ""
    # Uncached context tokens: 1 or 2, or more after a pause.
    num_tail_tokens: int = 1
    # What the round waited for.
    compute_us: int = 0
    queued_us: int = 0
    # Whether it was drafted while the target verified the round before.
    is_ahead: bool = False
    # The drafter of the tokens after the first `num_before`, if another continued. Forced tokens are not counted here.
    continued_by: str = ""
    num_before: int = 0
    # The draft model's probability of each of its tokens, if requested.
    confidences: Sequence[float] = ()
    # Under the entropy rule, per position: entropy / ln(vocab_size),
    entropies: Sequence[float] = ()
    # its moving average,
    smoothed_entropies: Sequence[float] = ()
    # and how many drafts that allows in the round.
    allowed_draft_tokens: Sequence[int] = ()

    @property
    def drafters(self) -> str:
        return f"{self.drafter}+{self.continued_by}" if self.continued_by else self.drafter

    def split(self, num_choices: int) -> list[tuple[str, str, int]]:
        """Returns each drafter, its draft model, and its part of the first `num_choices` drafts that are not forced."""
        if not self.continued_by:
            return [(self.drafter, self.draft_model, num_choices)]
        first = min(num_choices, self.num_before)
        return [(self.drafter, "", first), (self.continued_by, self.draft_model, num_choices - first)]


@dataclass(frozen=True, slots=True)
class NextDrafts:
    """What the target's draft head has drafted behind a round."""

    # Of the first draft.
    position: int
    tokens: Sequence[int]
    # The head's probability of each.
    confidences: Sequence[float]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    # Prefix tokens found in the target's cache.
    cached_tokens: int = 0
    compute_us: int = 0
    queued_us: int = 0
    # In the prompt's round if requested: one per prompt token from the second on.
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    # For the next round, if the proposal asked for them; and what they took besides `compute_us`.
    next_drafts: NextDrafts | None = None
    drafting_us: int = 0
    # Whether the target goes on with the next round by itself.
    is_free: bool = False


NO_DRAFT_REPORT = DraftReport()
NO_VERIFY_REPORT = VerifyReport()
