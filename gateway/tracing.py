"""A round's trace as JSON (docs/trace.md)."""

from typing import Any

from gateway.tokens import TokenTexts
from paceline.results import Piece

ORIGINS = {"A": "accepted", "R": "recovered", "B": "bonus", "T": "target"}


def trace_body(piece: Piece, texts: TokenTexts) -> dict[str, Any] | None:
    """What the round did; None where nobody asked. The texts of its tokens must be known."""
    trace = piece.trace
    if trace is None:
        return None
    return {
        "round": trace.round,
        "drafter": trace.drafter,
        "reason": trace.reason,
        "draft_tokens": trace.draft_tokens,
        "proposed": [
            {
                "token_id": each.token_id, "text": each.text, "accepted": each.accepted,
                "q": each.q, "p": each.p, "r": each.r, "target_id": each.target_id, "target_text": each.target_text,
            }
            for each in trace.proposed
        ],
        "emitted": [
            {"token_id": token, "text": texts[token].text, "origin": ORIGINS[letter]}
            for token, letter in zip(piece.token_ids, piece.origins, strict=True)
        ],
        "num_accepted": trace.num_accepted,
        "entropies": trace.entropies,
        "smoothed_entropies": trace.smoothed_entropies,
        "allowed_draft_tokens": trace.allowed_draft_tokens,
        "ms": {
            "draft": trace.draft_us / 1e3, "target": trace.target_us / 1e3,
            "queued": trace.queued_us / 1e3, "wire": trace.wire_us / 1e3,
        },
    }  # fmt: skip
