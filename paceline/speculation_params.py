import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from paceline.checks import require, require_at_most, require_type, with_known
from paceline.sampling_params import SamplingParams

MAX_DRAFT_TOKENS = 16
MAX_DRAFT_NAME_CHARACTERS = 256
_ALLOWED_LENGTHS = f"a number in [0, {MAX_DRAFT_TOKENS}], adaptive or entropy"


def _drafter(name: str, help: str, *, asks_model: bool = False, only_ids: bool = False) -> tuple[str, str, bool, bool]:
    return name, help, asks_model, only_ids


class Drafter(enum.Enum):
    """The registered drafters; `coordinator/drafters/NAME.py` makes each.

    help: description for users.
    asks_model: uses the draft model, if there is one.
    only_ids: proposes token ids without probabilities, which can only be matched.
    """

    _value_: str
    help: str
    asks_model: bool
    only_ids: bool

    MODEL = _drafter("model", "the draft model", asks_model=True)
    HIERARCHICAL = _drafter("hierarchical", "the draft model with n-gram guesses", asks_model=True)
    NGRAM = _drafter("ngram", "n-grams of this context", only_ids=True)
    SUFFIX = _drafter("suffix", "long matches in this context and recent responses", only_ids=True)
    HYBRID = _drafter("hybrid", "whichever of these gains most", asks_model=True)
    HEAD = _drafter("head", "the target's draft head", only_ids=True)
    CUSTOM = _drafter("custom", "the drafter of --custom-drafter")

    def __new__(cls, name: str, help: str = "", asks_model: bool = False, only_ids: bool = False) -> "Drafter":
        member = object.__new__(cls)
        member._value_, member.help, member.asks_model, member.only_ids = name, help, asks_model, only_ids
        return member


class DraftMode(enum.Enum):
    SAMPLED = "sampled"
    GREEDY = "greedy"
    COUPLED = "coupled"


class Rule(enum.Enum):
    MATCH = "match"
    REJECTION = "rejection"


@dataclass(frozen=True, slots=True)
class Bounds:
    """Chooses `min` to `max` draft tokens for the most expected tokens per second."""

    min: int = 0
    max: int = 8

    def __post_init__(self) -> None:
        _check_bounds(self.min, self.max, "length.min", "length.max")


@dataclass(frozen=True, slots=True)
class EntropyAdaptive:
    bounds: Bounds = field(default_factory=Bounds)
    # Weight of the past in the smoothed entropy.
    ema_beta: float = 0.5

    def __post_init__(self) -> None:
        _check_beta(self.ema_beta, "length.entropy.ema_beta")

    def allowed_draft_tokens(self, smoothed_entropy: float) -> int:
        """k = round(max - (max - min) * H), H the smoothed entropy over ln(vocabulary)."""
        return round(self.bounds.max - (self.bounds.max - self.bounds.min) * smoothed_entropy)


# A number, or the rule that chooses it in each round.
DraftLength = int | Bounds | EntropyAdaptive


def parse_draft_length(
    text: str | None, *, draft_min: int | None = None, draft_max: int | None = None, entropy_beta: float | None = None
) -> DraftLength:
    """Parses `adaptive`, `entropy` or a number. Raises InvalidArgument.

    draft_min, draft_max: default to `Bounds()`.
    entropy_beta: defaults to `EntropyAdaptive().ema_beta`.
    """
    number = None if text in (None, "adaptive", "entropy") else _parse_number(text)
    for name, bound in (("draft_min", draft_min), ("draft_max", draft_max)):
        fits = bound is None or text in ("adaptive", "entropy")
        require(fits, name, bound, "left out unless num_speculative_tokens is adaptive or entropy")
    fits = entropy_beta is None or text == "entropy"
    require(fits, "entropy_beta", entropy_beta, "left out unless num_speculative_tokens is entropy")
    if number is not None:
        return number
    require(text is not None, "num_speculative_tokens", text, _ALLOWED_LENGTHS)
    default = EntropyAdaptive()
    minimum = default.bounds.min if draft_min is None else draft_min
    maximum = default.bounds.max if draft_max is None else draft_max
    beta = default.ema_beta if entropy_beta is None else entropy_beta
    _check_bounds(minimum, maximum, "draft_min", "draft_max")
    _check_beta(beta, "entropy_beta")
    return Bounds(minimum, maximum) if text == "adaptive" else EntropyAdaptive(Bounds(minimum, maximum), beta)


def _parse_number(text: str) -> int:
    # int() has its own error for thousands of digits.
    is_short = text.isdecimal() and len(text) < 10
    require(is_short and int(text) <= MAX_DRAFT_TOKENS, "num_speculative_tokens", text[:40], _ALLOWED_LENGTHS)
    return int(text)


def _check_bounds(minimum: int, maximum: int, min_name: str, max_name: str) -> None:
    for name, bound in ((min_name, minimum), (max_name, maximum)):
        require(isinstance(bound, Integral) and not isinstance(bound, bool), name, bound, "a whole number")
    require(1 <= maximum <= MAX_DRAFT_TOKENS, max_name, maximum, f"in [1, {MAX_DRAFT_TOKENS}]")
    require(0 <= minimum <= maximum, min_name, minimum, f"in [0, {max_name}], which is {maximum}")


def _check_beta(beta: float, name: str) -> None:
    require(isinstance(beta, Real) and not isinstance(beta, bool), name, beta, "a number")
    require(0 <= beta < 1, name, beta, "in [0, 1)")


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Whether and how to speculate. Raises InvalidArgument on construction.

    Enums may be strings, such as `drafter="suffix"` and `num_speculative_tokens="adaptive"`.

    enabled: speculate at all.
    drafter: source of proposals.
    num_speculative_tokens: 0 to 16, or chosen in each round by Bounds (adaptive) or EntropyAdaptive.
    rule: how drafts are checked above temperature 0; at 0 always by equality. None: `match`, so that a seed repeats its
        text whatever is drafted; `rejection` if lenience or the draft mode needs the draft's probabilities.
    draft_mode: how a draft model draws; None: according to the rule.
    lenience: in (0, 1]; accept with min(1, p/(lenience q)). Below 1 the output's distribution is not exactly the
        target's.
    draft_temperature: temperature of the draft model, above 0; None: the request's. Does not change the output's
        distribution.
    draft_model: name of the draft model, of at most 256 characters, if the coordinator has several. Empty: any; with Bounds the
        one that gains most in each round.
    """

    enabled: bool = True
    drafter: Drafter = Drafter.HYBRID
    num_speculative_tokens: DraftLength = field(default_factory=Bounds)
    rule: Rule | None = None
    draft_mode: DraftMode | None = None
    lenience: float = 1.0
    draft_temperature: float | None = None
    draft_model: str = ""

    def __post_init__(self) -> None:
        self._convert_words()
        require_type(self, bool, "True or False", "enabled")
        require_type(self, Drafter, "a Drafter", "drafter")
        if self.rule is not None:
            require_type(self, Rule, "a Rule or None", "rule")
        if self.draft_mode is not None:
            require_type(self, DraftMode, "a DraftMode or None", "draft_mode")
        require_type(self, Real, "a number", "lenience")
        if not isinstance(self.num_speculative_tokens, Bounds | EntropyAdaptive):
            require_type(self, Integral, "a whole number, Bounds or EntropyAdaptive", "num_speculative_tokens")
            require(
                0 <= self.num_speculative_tokens <= MAX_DRAFT_TOKENS,
                "num_speculative_tokens", self.num_speculative_tokens, f"in [0, {MAX_DRAFT_TOKENS}]",
            )  # fmt: skip
        require(0 < self.lenience <= 1, "lenience", self.lenience, "in (0, 1]")
        if self.draft_temperature is not None:
            require_type(self, Real, "a number or None", "draft_temperature")
            is_positive = 0 < self.draft_temperature < math.inf
            require(is_positive, "draft_temperature", self.draft_temperature, "a finite number > 0")
        require_type(self, str, "a text", "draft_model")
        # A lone surrogate can't be encoded.
        require(
            self.draft_model == self.draft_model.encode(errors="ignore").decode(),
            "draft_model",
            self.draft_model,
            "a text in UTF-8",
        )
        require_at_most(MAX_DRAFT_NAME_CHARACTERS, len(self.draft_model), "draft_model", "characters")

    def _convert_words(self) -> None:
        for name, kind in (("drafter", Drafter), ("rule", Rule), ("draft_mode", DraftMode)):
            word = getattr(self, name)
            if isinstance(word, str):
                known: dict[str, enum.Enum] = {member.value: member for member in kind}
                require(word in known, name, word, "one of " + ", ".join(known))
                object.__setattr__(self, name, known[word])
        if isinstance(self.num_speculative_tokens, str):
            rules: dict[str, DraftLength] = {"adaptive": Bounds(), "entropy": EntropyAdaptive()}
            require(
                self.num_speculative_tokens in rules,
                "num_speculative_tokens",
                self.num_speculative_tokens,
                _ALLOWED_LENGTHS,
            )
            object.__setattr__(self, "num_speculative_tokens", rules[self.num_speculative_tokens])

    def overruled_by(self, asked: Mapping[str, Any], sampling: SamplingParams) -> "SpeculationParams":
        """Returns these defaults overridden by the fields that a request sets. Raises InvalidArgument.

        A default that conflicts with the request is dropped: the draft mode for another rule, the rule for another
        draft mode, both for lenience, and lenience if the request can't be lenient. The drafter stays.
        """
        found = replace(self, **asked) if asked else self
        asks_rule, asks_mode = "rule" in asked, "draft_mode" in asked
        asks_lenience = asked.get("lenience", 1) < 1
        if (asks_rule or asks_lenience) and not asks_mode:
            found = with_known(found, draft_mode=None)
        if (asks_mode or asks_lenience) and not asks_rule:
            found = with_known(found, rule=None)
        if "lenience" not in asked and (sampling.beams > 1 or found._matches_draws(sampling)):
            found = with_known(found, lenience=1.0)
        return found

    def check(self, sampling: SamplingParams) -> None:
        self.resolved_draft_mode(sampling)
        require(self.lenience == 1 or sampling.beams == 1, "lenience", self.lenience, "1 with beams")
        fits = self.lenience == 1 or not self._matches_draws(sampling)
        require(fits, "lenience", self.lenience, "1 under match above temperature 0")
        if self.draft_temperature is not None:
            is_drawn = self.drafter.asks_model and self.resolved_draft_mode(sampling) is not DraftMode.GREEDY
            allowed = "left out if no draft model draws: at temperature 0, with a greedy draft, or another drafter"
            require(is_drawn, "draft_temperature", self.draft_temperature, allowed)
        asks_it = self.drafter.asks_model or not self.draft_model
        require(
            asks_it,
            "draft_model",
            self.draft_model,
            f"left out with drafter {self.drafter.value}, which asks no draft model",
        )

    def draft_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """Returns how a draft model draws. Any q preserves the output's distribution if drafts are drawn from it
        (2211.17192, section 6).
        """
        if self.draft_temperature is None:
            return sampling
        return with_known(sampling, temperature=self.draft_temperature)

    def _matches_draws(self, sampling: SamplingParams) -> bool:
        """Whether drafts must equal the target's draws."""
        return not sampling.is_greedy and self.resolved_rule(sampling) is Rule.MATCH

    def resolved_rule(self, sampling: SamplingParams) -> Rule:
        """Returns the rule in force. Drafts without a distribution are matched: `rejection` with a one-hot q gives the
        same distribution.
        """
        only_ids = self.drafter.only_ids or self.draft_mode in (DraftMode.GREEDY, DraftMode.COUPLED)
        if sampling.is_greedy or only_ids:
            return Rule.MATCH
        needs_probabilities = self.lenience < 1 or self.draft_mode is DraftMode.SAMPLED
        return self.rule or (Rule.REJECTION if needs_probabilities else Rule.MATCH)

    def resolved_draft_mode(self, sampling: SamplingParams) -> DraftMode:
        if sampling.is_greedy:
            return DraftMode.GREEDY
        if self.resolved_rule(sampling) is Rule.REJECTION:
            return DraftMode.SAMPLED
        # Drawn with noise of its own, a draft would match the target's choice only by luck.
        require(self.draft_mode is not DraftMode.SAMPLED, "draft_mode", "sampled", "greedy or coupled under match")
        return self.draft_mode or DraftMode.COUPLED
