"""What a request may ask for, as validated values. No torch, no messages.

Each field's meaning and unit stand in proto/paceline/v1/sampling.proto.
"""

import enum
import math
from dataclasses import dataclass, field

from paceline.errors import InvalidArgument

MAX_DRAFT_TOKENS = 16
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
DEFAULT_MAX_TOKENS = 256


class Drafter(enum.Enum):
    """Where proposals come from."""

    MODEL = "model"
    NGRAM = "ngram"
    HYBRID = "hybrid"


class Drawing(enum.Enum):
    """How a draft model draws its tokens."""

    SAMPLED = "sampled"
    GREEDY = "greedy"
    COUPLED = "coupled"


class Rule(enum.Enum):
    """How drafts are checked."""

    MATCH = "match"
    REJECTION = "rejection"


def require(ok: bool, name: str, value: object, allowed: str) -> None:
    """Raises InvalidArgument naming the field and its range unless `ok`."""
    if not ok:
        raise InvalidArgument.field(name, value, allowed)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Raises InvalidArgument on construction."""

    max_tokens: int = DEFAULT_MAX_TOKENS
    min_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        require(1 <= self.max_tokens < 2**31, "max_tokens", self.max_tokens, "in [1, 2147483647]")
        require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "in [0, max_tokens]")
        require(0 <= self.temperature < math.inf, "temperature", self.temperature, "a finite number >= 0")
        require(self.top_k >= 0, "top_k", self.top_k, ">= 0 (0 keeps all)")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        require(0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        require(self.seed is None or 0 <= self.seed < 2**64, "seed", self.seed, "in [0, 2^64)")
        require(
            len(self.stop) <= MAX_STOP_STRINGS,
            "stop",
            f"{len(self.stop)} strings",
            f"at most {MAX_STOP_STRINGS} strings",
        )
        for text in self.stop:
            require(
                1 <= len(text) <= MAX_STOP_CHARACTERS, "stop", text, f"strings of 1 to {MAX_STOP_CHARACTERS} characters"
            )

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    def check_token_ids(self, vocab_size: int) -> None:
        """Raises InvalidArgument where a token id is outside the vocabulary."""
        for token_id in self.stop_token_ids:
            require(token_id < vocab_size, "stop_token_ids", token_id, f"in [0, {vocab_size})")


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Whether, how and how far to speculate. Raises InvalidArgument on construction."""

    enabled: bool = True
    drafter: Drafter = Drafter.MODEL
    num_draft_tokens: int = 4
    rule: Rule = Rule.REJECTION
    drawing: Drawing | None = field(default=None)

    def __post_init__(self) -> None:
        require(
            0 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS,
            "num_draft_tokens", self.num_draft_tokens, f"in [0, {MAX_DRAFT_TOKENS}]",
        )  # fmt: skip

    def resolved_rule(self, sampling: SamplingParams) -> Rule:
        """The rule in force. A draft that is one id and no distribution can only be matched: `rejection`
        with a one-hot q is the same law."""
        only_ids = sampling.is_greedy or self.drawing in (Drawing.GREEDY, Drawing.COUPLED)
        return Rule.MATCH if only_ids else self.rule

    def resolved_drawing(self, sampling: SamplingParams) -> Drawing:
        """How the draft model draws, where the request leaves it open. Raises InvalidArgument."""
        if sampling.is_greedy:
            return Drawing.GREEDY
        if self.resolved_rule(sampling) is Rule.REJECTION:
            return Drawing.SAMPLED
        # Drawn with noise of its own, a draft would match the target's choice only by luck.
        require(self.drawing is not Drawing.SAMPLED, "drawing", "sampled", "greedy or coupled under match")
        return self.drawing or Drawing.COUPLED
