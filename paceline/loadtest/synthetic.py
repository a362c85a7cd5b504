"""Prompts of random tokens."""

import random
from dataclasses import dataclass

from paceline.checks import require
from paceline.client import Prompt


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of synthetic requests, in tokens. Raises InvalidArgument."""

    prompt: int
    output: int

    def __post_init__(self) -> None:
        ok = self.prompt >= 1 and self.output >= 1
        require(ok, "--synthetic", f"{self.prompt}:{self.output}", "IN:OUT, both at least 1 token")

    def check(self, max_model_len: int) -> None:
        """Raises InvalidArgument where a sequence would be longer than the model's longest."""
        fits = self.prompt + self.output <= max_model_len
        allowed = f"at most {max_model_len} tokens in all, the model's longest sequence"
        require(fits, "--synthetic", f"{self.prompt}:{self.output}", allowed)


def parse_lengths(text: str) -> Lengths:
    """From IN:OUT. Raises InvalidArgument."""
    prompt, _, output = text.partition(":")
    ok = prompt.isdecimal() and output.isdecimal()
    require(ok, "--synthetic", text, "IN:OUT, both numbers of tokens, like 512:128")
    return Lengths(int(prompt), int(output))


def synthetic_prompt(num_tokens: int, token_ids: range, key: str) -> Prompt:
    """`num_tokens` random ids out of `token_ids`; the same for the same key."""
    source = random.Random(key)
    return source.choices(token_ids, k=num_tokens)
