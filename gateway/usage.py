"""What a request cost and what speculation did in it, in the words of OpenAI's clients and of benchmark tools."""

from collections.abc import Sequence
from typing import Any

from paceline.client import Prompt
from paceline.results import Finish, Piece, Speculation


class Usage:
    """Counts over all choices of a request."""

    def __init__(self, prompts: Sequence[Prompt], is_predicted: bool) -> None:
        """`is_predicted`: the client sent a prediction. Without one, what was predicted was ours."""
        self._is_predicted = is_predicted
        self._finished: dict[int, Finish] = {}
        # By the prompt's number: its n choices share it. How many ids there are is known before they are read.
        self._prompt_tokens = {
            number: len(each) for number, each in enumerate(prompts) if all(isinstance(one, int) for one in each[:1])
        }
        self._cached_tokens: dict[int, int] = {}
        self._completion_tokens = 0

    def begin(self, prompt: int, piece: Piece) -> None:
        """Takes a choice's first piece, which says how long the prompt is."""
        self._prompt_tokens[prompt] = piece.prompt_tokens
        self._cached_tokens.setdefault(prompt, piece.cached_prompt_tokens)

    def count(self, num_tokens: int) -> None:
        self._completion_tokens += num_tokens

    def finish(self, choice: int, finish: Finish) -> None:
        self._finished[choice] = finish

    def body(self) -> dict[str, Any]:
        """OpenAI's `usage`, so far."""
        figures = [each.speculation for each in self._finished.values()] if self._is_predicted else []
        num_prompt_tokens = sum(self._prompt_tokens.values())
        return {
            "prompt_tokens": num_prompt_tokens,
            "completion_tokens": self._completion_tokens,
            "total_tokens": num_prompt_tokens + self._completion_tokens,
            "prompt_tokens_details": {"cached_tokens": sum(self._cached_tokens.values())},
            "completion_tokens_details": {
                "accepted_prediction_tokens": sum(each.prediction_accepted for each in figures),
                "rejected_prediction_tokens": sum(each.prediction_rejected for each in figures),
            },
        }

    def figures(self) -> dict[str, Any]:
        """Root fields of the last chunk, or of the whole answer; of more than one choice they say nothing."""
        if len(self._finished) != 1:
            return {"metrics": {"speculative_decoding": None}, "paceline": None}
        [finish] = self._finished.values()
        return {"metrics": {"speculative_decoding": _metrics(finish.speculation)}, "paceline": _paceline(finish)}


def _metrics(figures: Speculation) -> dict[str, Any]:
    """As aiperf reads them."""
    return {
        "mean_acceptance_length": figures.mean_acceptance_length,
        "draft_acceptance_rate": figures.accepted / figures.proposed if figures.proposed else 0.0,
        "acceptance_histogram": figures.rounds_by_accepted,
        "num_spec_steps": figures.rounds,
        "num_accepted_draft_tokens": figures.accepted,
        "num_draft_tokens": figures.proposed,
        # Most tokens proposed in a round.
        "num_spec_tokens": len(figures.proposed_per_position),
    }


def _paceline(finish: Finish) -> dict[str, Any]:
    figures, timing = finish.speculation, finish.timing
    return {
        "seed": finish.seed,
        "speculation": {
            "rounds": figures.rounds,
            "proposed": figures.proposed,
            "accepted": figures.accepted,
            "mean_acceptance_length": figures.mean_acceptance_length,
        },
        "timing_ms": {
            "first_token": timing.ttft_ms, "total": timing.total_ms, "draft": timing.draft_ms,
            "target": timing.target_ms, "queued": timing.queued_ms, "wire": timing.wire_ms,
        },
    }  # fmt: skip
