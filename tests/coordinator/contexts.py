"""Contexts without text, for what looks at tokens alone."""

from typing import cast

from coordinator.acceptance import Origin, Outcome
from coordinator.context import Context
from coordinator.request import Request
from coordinator.tokenizer import TextStream
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams


class SilentText:
    """Stands in for a TextStream: what tokens mean is of no concern here."""

    matched_stop = ""
    num_characters = 0

    def push(self, token: int, is_end: bool, may_stop: bool) -> str:
        return ""

    def finish(self) -> str:
        return ""


def make_context(prompt: list[int], max_tokens: int = 10_000, trace: bool = False) -> Context:
    sampling = SamplingParams(seed=1, max_tokens=max_tokens)
    request = Request(
        "id", prompt, sampling, SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4), (), 100_000, 400,
        trace=trace,
    )  # fmt: skip
    return Context(request, cast(TextStream, SilentText()))


def decide(context: Context, tokens: list[int]) -> None:
    context.extend(Outcome(tokens, len(tokens) - 1, Origin.BONUS))
