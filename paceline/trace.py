"""How a round came about, where a request asks for it: what was proposed, by whom, and how it was decided."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TracedDraft:
    """One draft of a round. Drafts behind a rejection, or behind the end of the text, were not decided."""

    token_id: int
    # Bytes that are no whole character come out as U+FFFD.
    text: str
    # Accepted and emitted.
    accepted: bool
    # Under `rejection`, where decided: the draft's probability, the target's, and the uniform number compared with
    # them. The draft is accepted where r * lenience * q < p.
    q: float | None = None
    p: float | None = None
    r: float | None = None
    # Under `match`, where decided: the target's own choice.
    target_id: int | None = None
    target_text: str | None = None


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round: one run of the target. Times in microseconds."""

    # 0 for the prompt's round.
    round: int
    # "model", "ngram", "suffix", "prediction" or "custom"; "none" where nothing was proposed, for this reason.
    drafter: str
    reason: str
    # Asked of the drafter.
    draft_tokens: int
    proposed: list[TracedDraft]
    # Of these accepted and emitted.
    num_accepted: int
    # Under the entropy rule: the draft's entropy over ln(vocabulary) at each position where it looked.
    entropies: list[float]
    # The same, smoothed with those of decided positions before.
    smoothed_entropies: list[float]
    # By each of these: the draft tokens that the rule allows in this round.
    allowed_draft_tokens: list[int]
    draft_us: int
    target_us: int
    # Waiting for a device on either server.
    queued_us: int
    # Messages and event loops.
    wire_us: int
