"""Counts the tokens of an answer, and says what speculation gained."""

from collections.abc import Sequence
from typing import Any

from paceline.client import Prompt
from paceline.results import Chunk, Finish, Speculation


class Usage:
    def __init__(self, prompts: Sequence[Prompt], has_prediction: bool) -> None:
        """`has_prediction`: the client sent one; the gateway's own are not reported."""
        self._has_prediction = has_prediction
        self._finished: dict[int, Finish] = {}
        # By prompt index, as n choices share a prompt. Prompts of token ids count from the start.
        self._prompt_tokens = {
            index: len(each)
            for index, each in enumerate(prompts)
            if isinstance(each, list) and all(isinstance(one, int) for one in each[:1])
        }
        self._cached_tokens: dict[int, int] = {}
        self.completion_tokens = 0

    def begin(self, prompt: int, chunk: Chunk) -> None:
        """Takes what a round says of its prompt; of the cache, the first says it."""
        self._prompt_tokens[prompt] = chunk.prompt_tokens
        self._cached_tokens.setdefault(prompt, chunk.cached_prompt_tokens)

    def count(self, num_tokens: int) -> None:
        self.completion_tokens += num_tokens

    def finish(self, choice: int, finish: Finish) -> None:
        self._finished[choice] = finish

    @property
    def prompt_tokens(self) -> int:
        return sum(self._prompt_tokens.values())

    @property
    def cached_tokens(self) -> int:
        return sum(self._cached_tokens.values())

    @property
    def reasoning_tokens(self) -> int:
        return sum(each.reasoning_tokens for each in self._finished.values())

    def body(self) -> dict[str, Any]:
        """Returns OpenAI's `usage` so far."""
        figures = [each.speculation for each in self._finished.values()] if self._has_prediction else []
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": sum(each.prediction_accepted for each in figures),
                "rejected_prediction_tokens": sum(each.prediction_rejected for each in figures),
            },
        }

    def figures(self) -> dict[str, Any]:
        """Returns root fields of the last chunk or whole response; null for more than one choice."""
        if len(self._finished) != 1:
            return {"metrics": {"speculative_decoding": None}, "paceline": None}
        [finish] = self._finished.values()
        return {"metrics": {"speculative_decoding": _metrics(finish.speculation)}, "paceline": _paceline(finish)}


def _metrics(figures: Speculation) -> dict[str, Any]:
    """Names figures as aiperf reads them."""
    return {
        "mean_acceptance_length": figures.mean_acceptance_length,
        "draft_acceptance_rate": figures.accepted / figures.proposed if figures.proposed else 0.0,
        "acceptance_histogram": figures.rounds_by_accepted,
        "num_spec_steps": figures.rounds,
        "num_accepted_draft_tokens": figures.accepted,
        "num_draft_tokens": figures.proposed,
        # Maximum per round.
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
            "forced": figures.forced,
        },
        "timing_ms": {
            "first_token": timing.ttft_ms, "total": timing.total_ms, "draft": timing.draft_ms,
            "target": timing.target_ms, "queued": timing.queued_ms, "rpc": timing.rpc_ms,
        },
        **({"unenforced": finish.unenforced} if finish.unenforced else {}),
    }  # fmt: skip
