"""What comes along with a proposal and a verdict and decides nothing: who drafted, how long it took, and why.

Statistics, traces and the speculation policy read it; acceptance does not.
"""

from dataclasses import dataclass, field

from paceline.results import TokenLogprobs


@dataclass(frozen=True, slots=True)
class DraftReport:
    """How a proposal came about."""

    # Name of the drafter, as statistics show it.
    drafter: str = "custom"
    # Why there are no tokens, for a user to read.
    reason: str = ""
    # Tokens that the drafter was asked for.
    num_asked: int = 0
    # Context tokens the drafter had to read first: 1 or 2, or more after a pause.
    num_tail_tokens: int = 1
    computed_us: int = 0
    queued_us: int = 0
    # The drafter that went on after the first `num_before` tokens, if another did.
    continued_by: str = ""
    num_before: int = 0
    # The draft model's probability of each of its tokens, if asked for.
    confidences: list[float] = field(default_factory=list)
    # Under the entropy rule, for each position that was drafted or refused: entropy / ln(vocabulary), ...
    entropies: list[float] = field(default_factory=list)
    # ... smoothed over the positions up to it, ...
    smoothed_entropies: list[float] = field(default_factory=list)
    # ... and the number of drafts that it allows in the round.
    allowed_draft_tokens: list[int] = field(default_factory=list)

    @property
    def drafters(self) -> str:
        return f"{self.drafter}+{self.continued_by}" if self.continued_by else self.drafter

    def split(self, num_tokens: int) -> list[tuple[str, int]]:
        """Returns each drafter's name and its part of the first `num_tokens` tokens."""
        if not self.continued_by:
            return [(self.drafter, num_tokens)]
        first = min(num_tokens, self.num_before)
        return [(self.drafter, first), (self.continued_by, num_tokens - first)]


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """How a verdict came about."""

    # Tokens that the target's cache held already.
    cached_tokens: int = 0
    computed_us: int = 0
    queued_us: int = 0
    # If asked for, in the prompt's round: one for each prompt token from the second on.
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


NO_DRAFT_REPORT = DraftReport()
NO_VERIFY_REPORT = VerifyReport()
