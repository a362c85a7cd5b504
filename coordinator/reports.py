"""Details of proposals and verdicts for statistics, traces and the policy. Acceptance does not read them."""

from dataclasses import dataclass, field

from paceline.results import TokenLogprobs


@dataclass(frozen=True, slots=True)
class DraftReport:
    drafter: str = "custom"
    # Shown to users when no tokens are proposed.
    reason: str = ""
    # Number of draft tokens requested.
    num_asked: int = 0
    # Uncached context tokens: 1 or 2, or more after a pause.
    num_tail_tokens: int = 1
    computed_us: int = 0
    queued_us: int = 0
    # Under the entropy rule, per position: entropy / ln(vocab_size),
    entropies: list[float] = field(default_factory=list)
    # its moving average,
    smoothed_entropies: list[float] = field(default_factory=list)
    # and how many drafts that allows in the round.
    allowed_draft_tokens: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    # Prefix tokens found in the target's cache.
    cached_tokens: int = 0
    computed_us: int = 0
    queued_us: int = 0
    # In the prompt's round if requested: one per prompt token from the second on.
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)


NO_DRAFT_REPORT = DraftReport()
NO_VERIFY_REPORT = VerifyReport()
