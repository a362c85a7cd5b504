"""Speculation parameters, validated. No torch, no messages."""

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from paceline.checks import require, require_type
from paceline.sampling import SamplingParams

MAX_DRAFT_TOKENS = 16
_ALLOWED_LENGTHS = f"a number in [0, {MAX_DRAFT_TOKENS}], adaptive or entropy"


def _drafter(name: str, help: str, *, asks_model: bool = False, only_ids: bool = False) -> tuple[str, str, bool, bool]:
    return name, help, asks_model, only_ids


class Drafter(enum.Enum):
    """The registered drafters. `coordinator/drafters/NAME.py` makes each.

    help: description for users.
    asks_model: asks the draft model, if there is one.
    only_ids: proposes token ids without probabilities, which can only be matched.
    """

    _value_: str
    help: str
    asks_model: bool
    only_ids: bool

    MODEL = _drafter("model", "the draft model", asks_model=True)
    HIERARCHICAL = _drafter("hierarchical", "the draft model with n-gram guesses", asks_model=True)
    NGRAM = _drafter("ngram", "n-grams of this context", only_ids=True)
    SUFFIX = _drafter("suffix", "long matches in this context and recent answers", only_ids=True)
    HYBRID = _drafter("hybrid", "whichever of these gains most", asks_model=True)
    CUSTOM = _drafter("custom", "the drafter of --custom-drafter")

    def __new__(cls, name: str, help: str = "", asks_model: bool = False, only_ids: bool = False) -> "Drafter":
        member = object.__new__(cls)
        member._value_, member.help, member.asks_model, member.only_ids = name, help, asks_model, only_ids
        return member


class DraftMode(enum.Enum):
    """How a draft model draws its tokens."""

    SAMPLED = "sampled"
    GREEDY = "greedy"
    COUPLED = "coupled"


class Rule(enum.Enum):
    """How drafts are checked."""

    MATCH = "match"
    REJECTION = "rejection"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Maximizes expected tokens per second with `min` to `max` draft tokens."""

    min: int = 0
    max: int = 8

    def __post_init__(self) -> None:
        _check_bounds(self.min, self.max, "length.min", "length.max")


@dataclass(frozen=True, slots=True)
class EntropyAdaptive:
    """Proposes fewer draft tokens when the draft model is unsure."""

    bounds: Bounds = field(default_factory=Bounds)
    # Weight of the past in the smoothed entropy.
    ema_beta: float = 0.5

    def __post_init__(self) -> None:
        _check_beta(self.ema_beta, "length.entropy.ema_beta")

    def allowed_draft_tokens(self, smoothed_entropy: float) -> int:
        """k = round(max - (max - min) * H), with H the smoothed entropy over ln(vocabulary)."""
        return round(self.bounds.max - (self.bounds.max - self.bounds.min) * smoothed_entropy)


# A number, or the rule that chooses it in each round.
DraftLength = int | Bounds | EntropyAdaptive


def parse_draft_length(
    text: str | None, *, draft_min: int | None = None, draft_max: int | None = None, entropy_beta: float | None = None
) -> DraftLength:
    """Parses what a user types.

    text: `adaptive`, `entropy` or a number.
    draft_min, draft_max: bounds of `adaptive` and `entropy`; default to `Bounds()`.
    entropy_beta: ema_beta of `entropy`; defaults to that of `EntropyAdaptive()`.

    Raises InvalidArgument, which calls `text` draft_tokens.
    """
    number = None if text in (None, "adaptive", "entropy") else _parse_number(text)
    for name, bound in (("draft_min", draft_min), ("draft_max", draft_max)):
        fits = bound is None or text in ("adaptive", "entropy")
        require(fits, name, bound, "left out unless draft_tokens is adaptive or entropy")
    fits = entropy_beta is None or text == "entropy"
    require(fits, "entropy_beta", entropy_beta, "left out unless draft_tokens is entropy")
    if number is not None:
        return number
    require(text is not None, "draft_tokens", text, _ALLOWED_LENGTHS)
    default = EntropyAdaptive()
    least = default.bounds.min if draft_min is None else draft_min
    most = default.bounds.max if draft_max is None else draft_max
    beta = default.ema_beta if entropy_beta is None else entropy_beta
    _check_bounds(least, most, "draft_min", "draft_max")
    _check_beta(beta, "entropy_beta")
    return Bounds(least, most) if text == "adaptive" else EntropyAdaptive(Bounds(least, most), beta)


def _parse_number(text: str) -> int:
    # int() has its own error for thousands of digits.
    is_short = text.isdecimal() and len(text) < 10
    require(is_short and int(text) <= MAX_DRAFT_TOKENS, "draft_tokens", text[:40], _ALLOWED_LENGTHS)
    return int(text)


def _check_bounds(least: int, most: int, least_name: str, most_name: str) -> None:
    for name, bound in ((least_name, least), (most_name, most)):
        require(isinstance(bound, Integral) and not isinstance(bound, bool), name, bound, "a whole number")
    require(1 <= most <= MAX_DRAFT_TOKENS, most_name, most, f"in [1, {MAX_DRAFT_TOKENS}]")
    require(0 <= least <= most, least_name, least, f"in [0, {most_name}], which is {most}")


def _check_beta(beta: float, name: str) -> None:
    require(isinstance(beta, Real) and not isinstance(beta, bool), name, beta, "a number")
    require(0 <= beta < 1, name, beta, "in [0, 1)")


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Whether and how to speculate. Raises InvalidArgument on construction.

    Strings are accepted for enums, such as `drafter="suffix"` and `num_draft_tokens="adaptive"`.

    enabled: speculate at all.
    drafter: source of proposals.
    num_draft_tokens: a number from 0 to 16, or a rule that chooses it in each round: Bounds (adaptive) or
        EntropyAdaptive.
    rule: how drafts are checked above temperature 0; at 0 they must be the target's own tokens. None: `match`, so that a
        seed repeats its text whatever is drafted; `rejection` if lenience or the draft mode needs the draft's
        probabilities.
    draft_mode: how a draft model draws; None: according to the rule.
    lenience: in (0, 1]; accept with min(1, p/(lenience q)). Below 1 the output's distribution is not exactly the
        target's.
    draft_temperature: temperature of the draft model, above 0; None: the request's. The output's distribution is the
        target's at the request's temperature in any case.
    """

    enabled: bool = True
    drafter: Drafter = Drafter.HYBRID
    num_draft_tokens: DraftLength = field(default_factory=Bounds)
    rule: Rule | None = None
    draft_mode: DraftMode | None = None
    lenience: float = 1.0
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
        self._convert_words()
        require_type(self, bool, "True or False", "enabled")
        require_type(self, Drafter, "a Drafter", "drafter")
        if self.rule is not None:
            require_type(self, Rule, "a Rule or None", "rule")
        if self.draft_mode is not None:
            require_type(self, DraftMode, "a DraftMode or None", "draft_mode")
        require_type(self, Real, "a number", "lenience")
        if not isinstance(self.num_draft_tokens, Bounds | EntropyAdaptive):
            require_type(self, Integral, "a whole number, Bounds or EntropyAdaptive", "num_draft_tokens")
            require(
                0 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS,
                "num_draft_tokens", self.num_draft_tokens, f"in [0, {MAX_DRAFT_TOKENS}]",
            )  # fmt: skip
        require(0 < self.lenience <= 1, "lenience", self.lenience, "in (0, 1]")
        if self.draft_temperature is not None:
            require_type(self, Real, "a number or None", "draft_temperature")
            is_positive = 0 < self.draft_temperature < math.inf
            require(is_positive, "draft_temperature", self.draft_temperature, "a finite number > 0")

    def _convert_words(self) -> None:
        for name, kind in (("drafter", Drafter), ("rule", Rule), ("draft_mode", DraftMode)):
            word = getattr(self, name)
            if isinstance(word, str):
                known: dict[str, enum.Enum] = {member.value: member for member in kind}
                require(word in known, name, word, "one of " + ", ".join(known))
                object.__setattr__(self, name, known[word])
        if isinstance(self.num_draft_tokens, str):
            rules: dict[str, DraftLength] = {"adaptive": Bounds(), "entropy": EntropyAdaptive()}
            require(self.num_draft_tokens in rules, "num_draft_tokens", self.num_draft_tokens, _ALLOWED_LENGTHS)
            object.__setattr__(self, "num_draft_tokens", rules[self.num_draft_tokens])

    def overruled_by(self, asked: Mapping[str, Any], sampling: SamplingParams) -> "SpeculationParams":
        """Returns these defaults overridden by the fields that a request sets.

        A default that conflicts with the request is dropped: the draft mode for another rule, the rule for another draft
        mode, both for lenience, and lenience for what can't be lenient. The drafter stays.

        Raises InvalidArgument.
        """
        found = replace(self, **asked)
        asks_rule, asks_mode = "rule" in asked, "draft_mode" in asked
        asks_lenience = asked.get("lenience", 1) < 1
        if (asks_rule or asks_lenience) and not asks_mode:
            found = replace(found, draft_mode=None)
        if (asks_mode or asks_lenience) and not asks_rule:
            found = replace(found, rule=None)
        if "lenience" not in asked and (sampling.beams > 1 or found._matches_draws(sampling)):
            found = replace(found, lenience=1.0)
        return found

    def check(self, sampling: SamplingParams) -> None:
        """Raises InvalidArgument if the two sets of parameters conflict."""
        self.resolved_draft_mode(sampling)
        require(self.lenience == 1 or sampling.beams == 1, "lenience", self.lenience, "1 with beams")
        fits = self.lenience == 1 or not self._matches_draws(sampling)
        require(fits, "lenience", self.lenience, "1 under match above temperature 0")
        if self.draft_temperature is not None:
            is_drawn = self.drafter.asks_model and self.resolved_draft_mode(sampling) is not DraftMode.GREEDY
            allowed = "left out if no draft model draws: at temperature 0, with a greedy draft, or another drafter"
            require(is_drawn, "draft_temperature", self.draft_temperature, allowed)

    def draft_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Returns how a draft model draws. Any q preserves the output's distribution as long as drafts are drawn from it,
        so q may be transformed in another way than p (2211.17192, section 6)."""
        return sampling if self.draft_temperature is None else replace(sampling, temperature=self.draft_temperature)

    def _matches_draws(self, sampling: SamplingParams) -> bool:
        """Whether drafts must equal what the target draws, so that their probabilities do not matter."""
        return not sampling.is_greedy and self.resolved_rule(sampling) is Rule.MATCH

    def resolved_rule(self, sampling: SamplingParams) -> Rule:
        """Returns the rule in force. A draft without a distribution can only be matched: `rejection` with a one-hot q
        gives the same distribution."""
        only_ids = self.drafter.only_ids or self.draft_mode in (DraftMode.GREEDY, DraftMode.COUPLED)
        if sampling.is_greedy or only_ids:
            return Rule.MATCH
        needs_probabilities = self.lenience < 1 or self.draft_mode is DraftMode.SAMPLED
        return self.rule or (Rule.REJECTION if needs_probabilities else Rule.MATCH)

    def resolved_draft_mode(self, sampling: SamplingParams) -> DraftMode:
        """Returns the draft mode in force. Raises InvalidArgument."""
        if sampling.is_greedy:
            return DraftMode.GREEDY
        if self.resolved_rule(sampling) is Rule.REJECTION:
            return DraftMode.SAMPLED
        # Drawn with noise of its own, a draft would match the target's choice only by luck.
        require(self.draft_mode is not DraftMode.SAMPLED, "draft_mode", "sampled", "greedy or coupled under match")
        return self.draft_mode or DraftMode.COUPLED
