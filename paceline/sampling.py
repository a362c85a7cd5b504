"""What a request may ask for, as validated values. No torch, no messages."""

import enum
import math
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import Any

from paceline.checks import is_token_id, require, require_at_most, require_type

MAX_DRAFT_TOKENS = 16
MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
# In a list of token ids, or of biases: each of them costs time in every step.
MAX_LISTED_IDS = 16_384
DEFAULT_MAX_TOKENS = 256
MAX_SALT_CHARACTERS = 256
MAX_ID_CHARACTERS = 256
MAX_SAMPLES = 64
MAX_LOGPROBS = 20
MAX_BEAMS = 10
# The least is 0.01 as a message carries it: rounded to float32, which is a little less.
MIN_REPETITION_PENALTY = 0.01 * (1 - 2**-24)
MAX_REPETITION_PENALTY = 100.0


class Drafter(enum.Enum):
    """Where proposals come from."""

    MODEL = "model"
    NGRAM = "ngram"
    HYBRID = "hybrid"
    CUSTOM = "custom"
    SUFFIX = "suffix"
    HIERARCHICAL = "hierarchical"


class DraftMode(enum.Enum):
    """How a draft model draws its tokens."""

    SAMPLED = "sampled"
    GREEDY = "greedy"
    COUPLED = "coupled"


class Rule(enum.Enum):
    """How drafts are checked."""

    MATCH = "match"
    REJECTION = "rejection"


def check_lengths(params: Any) -> None:
    """Raises InvalidArgument where a list is too long. `params`: SamplingParams, or the message of that name: it is
    checked before its lists are copied."""
    require_at_most(MAX_STOP_STRINGS, len(params.stop), "stop", "strings")
    for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "logit_bias"):
        require_at_most(MAX_LISTED_IDS, len(getattr(params, name)), name, "token ids")


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Raises InvalidArgument on construction.

    max_tokens: most tokens to generate, at least 1.
    min_tokens: no end of text and no stop condition before so many tokens.
    temperature: at least 0; 0 takes the likeliest token.
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: keep the likeliest tokens up to this mass, in (0, 1].
    min_p: keep tokens at least so many times as likely as the likeliest, in [0, 1].
    seed: repeats a text; None: a fresh one, which Finish.seed reports.
    stop: the text ends before the first of these strings; at most 64.
    stop_token_ids: the text ends after the first of these tokens.
    ignore_eos: go on past the model's end of text.
    repetition_penalty: in [0.01, 100]; above 1, tokens of prompt and output are less likely.
    presence_penalty: in [-2, 2]; taken off the logit of each token that is in the output.
    frequency_penalty: in [-2, 2]; taken off for each time a token is in the output.
    logit_bias: by token id, what is added to its logit, in [-100, 100].
    allowed_token_ids: if there are any, no other can be drawn.
    banned_token_ids: these can't be drawn.
    n: independent samples of one prompt, 1 to 64.
    logprobs: report each token's log-probability and those of so many likeliest tokens, 0 to 20; None: no report.
    prompt_logprobs: the same for the prompt's tokens from the second on.
    beams: beam search over so many hypotheses, 1 to 10; above 1 the answer is the best of them, whole at the end.
    length_penalty: of beams, in [-10, 10]: a hypothesis's score is its log-probability / (its tokens) ^ length_penalty.
    """

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
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    beams: int = 1
    length_penalty: float = 1.0

    def __post_init__(self) -> None:
        self._check_types()
        require(1 <= self.max_tokens < 2**31, "max_tokens", self.max_tokens, "in [1, 2147483647]")
        require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "in [0, max_tokens]")
        require(0 <= self.temperature < math.inf, "temperature", self.temperature, "a finite number >= 0")
        require(0 <= self.top_k < 2**31, "top_k", self.top_k, "in [0, 2147483647] (0 keeps all)")
        require(0 < self.top_p <= 1, "top_p", self.top_p, "in (0, 1]")
        require(0 <= self.min_p <= 1, "min_p", self.min_p, "in [0, 1]")
        require(self.seed is None or 0 <= self.seed < 2**64, "seed", self.seed, "in [0, 2^64)")
        check_lengths(self)
        for text in self.stop:
            require(
                1 <= len(text) <= MAX_STOP_CHARACTERS, "stop", text, f"strings of 1 to {MAX_STOP_CHARACTERS} characters"
            )

        self._check_adjustments()
        require(1 <= self.n <= MAX_SAMPLES, "n", self.n, f"in [1, {MAX_SAMPLES}]")
        for name in ("logprobs", "prompt_logprobs"):
            wanted = getattr(self, name)
            require(wanted is None or 0 <= wanted <= MAX_LOGPROBS, name, wanted, f"in [0, {MAX_LOGPROBS}]")
        require(1 <= self.beams <= MAX_BEAMS, "beams", self.beams, f"in [1, {MAX_BEAMS}]")
        require(-10 <= self.length_penalty <= 10, "length_penalty", self.length_penalty, "in [-10, 10]")
        self._check_beams()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_untruncated(self) -> bool:
        """Whether the distribution is the softmax at a temperature, with no token left out for being unlikely."""
        return not (self.is_greedy or self.top_k or self.top_p < 1 or self.min_p)

    @property
    def has_penalties(self) -> bool:
        """Whether the distribution depends on which tokens came before, beyond the model's own dependence."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def check_token_ids(self, vocab_size: int, eos_token_ids: tuple[int, ...] = ()) -> None:
        """Raises InvalidArgument where a token id is outside the vocabulary, or no token is left to draw."""
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids", "banned_token_ids"):
            worst = max(getattr(self, name), default=0)
            require(worst < vocab_size, name, worst, f"in [0, {vocab_size})")
        banned = set(self.banned_token_ids)
        if self.min_tokens > 0:
            banned |= {*self.stop_token_ids, *eos_token_ids}
        drawable = set(self.allowed_token_ids) - banned if self.allowed_token_ids else vocab_size - len(banned)
        require(bool(drawable), "banned_token_ids", "all that could be drawn", "such that a token is left to draw")
        ends = {*self.stop_token_ids, *eos_token_ids}
        # A step of beams asks for the likeliest tokens: as many as live, and all that may end the text.
        fits = self.beams == 1 or self.beams + len(ends) <= MAX_LOGPROBS
        most = f"at most {MAX_LOGPROBS} together with the {len(ends)} tokens that end the text"
        require(fits, "beams", self.beams, most)

    def _check_types(self) -> None:
        require_type(self, Integral, "a whole number", "max_tokens", "min_tokens", "top_k", "n", "beams")
        require_type(self, Real, "a number", "temperature", "top_p", "min_p", "length_penalty")
        require_type(self, Real, "a number", "repetition_penalty", "presence_penalty", "frequency_penalty")
        require_type(self, bool, "True or False", "ignore_eos")
        for name in ("seed", "logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                require_type(self, Integral, "a whole number or None", name)
        is_list = isinstance(self.stop, tuple | list) and all(isinstance(text, str) for text in self.stop)
        require(is_list, "stop", self.stop, "a list or tuple of texts")
        # Half of a character, as Python has it, is lost in UTF-8.
        is_utf8 = all(text == text.encode(errors="ignore").decode() for text in self.stop)
        require(is_utf8, "stop", self.stop, "texts in UTF-8")
        for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids"):
            ids = getattr(self, name)
            ok = isinstance(ids, tuple | list) and all(map(is_token_id, ids))
            require(ok, name, ids, "a list or tuple of token ids")
        biases = self.logit_bias
        ok = isinstance(biases, dict) and all(
            is_token_id(token) and isinstance(bias, Real) for token, bias in biases.items()
        )
        require(ok, "logit_bias", biases, "a dict from token ids to numbers")

    def _check_beams(self) -> None:
        """Beams are the target's likeliest texts: nothing that draws, or changes what is likely, goes with them."""
        if self.beams == 1:
            require(self.length_penalty == 1, "length_penalty", self.length_penalty, "1 without beams")
            return
        neutral = {"temperature": 0, "min_tokens": 0, "n": 1, "logprobs": None, "prompt_logprobs": None}
        neutral |= {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
        for name, value in neutral.items():
            require(getattr(self, name) == value, name, getattr(self, name), f"{value} with beams")
        for name in ("stop", "logit_bias", "allowed_token_ids", "banned_token_ids"):
            require(not getattr(self, name), name, getattr(self, name), "empty with beams")

    def _check_adjustments(self) -> None:
        """Penalties and bias."""
        ok = MIN_REPETITION_PENALTY <= self.repetition_penalty <= MAX_REPETITION_PENALTY
        require(ok, "repetition_penalty", self.repetition_penalty, "in [0.01, 100]")
        for name in ("presence_penalty", "frequency_penalty"):
            require(-2 <= getattr(self, name) <= 2, name, getattr(self, name), "in [-2, 2]")
        for token_id, bias in self.logit_bias.items():
            require(-100 <= bias <= 100, f"logit_bias[{token_id}]", bias, "in [-100, 100]")


@dataclass(frozen=True, slots=True)
class Bounds:
    """As many draft tokens as maximise expected tokens per second, from `min` to `max`."""

    min: int = 0
    max: int = 8

    def __post_init__(self) -> None:
        require(1 <= self.max <= MAX_DRAFT_TOKENS, "length.max", self.max, f"in [1, {MAX_DRAFT_TOKENS}]")
        require(0 <= self.min <= self.max, "length.min", self.min, "in [0, length.max]")


@dataclass(frozen=True, slots=True)
class EntropyAdaptive:
    """Fewer draft tokens where the draft model is unsure."""

    bounds: Bounds = field(default_factory=Bounds)
    # Weight of the past in the smoothed entropy.
    ema_beta: float = 0.5

    def __post_init__(self) -> None:
        require(0 <= self.ema_beta < 1, "length.entropy.ema_beta", self.ema_beta, "in [0, 1)")


# A number, or the rule that chooses it in each round.
DraftLength = int | Bounds | EntropyAdaptive


def parse_draft_length(text: str) -> DraftLength:
    """From what a user types. Raises InvalidArgument."""
    if text == "adaptive":
        return Bounds()
    if text == "entropy":
        return EntropyAdaptive()
    allowed = f"a number in [0, {MAX_DRAFT_TOKENS}], adaptive or entropy"
    # int() refuses thousands of digits in words of its own.
    is_short = text.isdecimal() and len(text) < 10
    require(is_short and int(text) <= MAX_DRAFT_TOKENS, "draft_tokens", text[:40], allowed)
    return int(text)


@dataclass(frozen=True, slots=True)
class SpeculationParams:
    """Whether, how and how far to speculate. Raises InvalidArgument on construction.

    enabled: speculate at all.
    drafter: where proposals come from.
    num_draft_tokens: proposed in a round: a number from 0 to 16, or the rule that chooses it, Bounds (adaptive) or
        EntropyAdaptive.
    rule: how drafts are checked above temperature 0; at 0 they must be the target's own tokens. None: `match`, so that a
        seed repeats its text whatever is drafted, and however many tokens; `rejection` where the draft's probabilities
        are asked for, by lenience or by the draft mode.
    draft_mode: how a draft model draws; None: as goes with the rule.
    lenience: in (0, 1]; accept with min(1, p/(lenience q)). Below 1 the output's distribution is not quite the target's.
    draft_temperature: above 0, at which a draft model draws in place of the request's temperature; None: the request's.
        The output's distribution is the target's at the request's temperature all the same.
    """

    enabled: bool = True
    drafter: Drafter = Drafter.HYBRID
    num_draft_tokens: DraftLength = field(default_factory=Bounds)
    rule: Rule | None = None
    draft_mode: DraftMode | None = None
    lenience: float = 1.0
    draft_temperature: float | None = None

    def __post_init__(self) -> None:
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

    def check(self, sampling: SamplingParams) -> None:
        """Raises InvalidArgument where the two sets of parameters do not go together."""
        self.resolved_draft_mode(sampling)
        require(self.lenience == 1 or sampling.beams == 1, "lenience", self.lenience, "1 with beams")
        sampled_match = not sampling.is_greedy and self.resolved_rule(sampling) is Rule.MATCH
        # A draft that is not the target's own draw says nothing of how likely it was.
        require(self.lenience == 1 or not sampled_match, "lenience", self.lenience, "1 under match above temperature 0")
        if self.draft_temperature is not None:
            has_model = self.drafter in (Drafter.MODEL, Drafter.HYBRID)
            is_drawn = has_model and self.resolved_draft_mode(sampling) is not DraftMode.GREEDY
            allowed = "left out where no draft model draws: at temperature 0, with a greedy draft, or another drafter"
            require(is_drawn, "draft_temperature", self.draft_temperature, allowed)

    def draft_sampling(self, sampling: SamplingParams) -> SamplingParams:
        """How a draft model draws. Any q leaves the output's distribution as it is, as long as it is the q that drafts
        are drawn from: so it may be transformed in another way than p (2211.17192, section 6)."""
        return sampling if self.draft_temperature is None else replace(sampling, temperature=self.draft_temperature)

    def resolved_rule(self, sampling: SamplingParams) -> Rule:
        """The rule in force. A draft that is one id and no distribution can only be matched: `rejection`
        with a one-hot q is the same law."""
        only_ids = self.drafter in (Drafter.NGRAM, Drafter.SUFFIX) or self.draft_mode in (
            DraftMode.GREEDY,
            DraftMode.COUPLED,
        )
        if sampling.is_greedy or only_ids:
            return Rule.MATCH
        needs_probabilities = self.lenience < 1 or self.draft_mode is DraftMode.SAMPLED
        return self.rule or (Rule.REJECTION if needs_probabilities else Rule.MATCH)

    def resolved_draft_mode(self, sampling: SamplingParams) -> DraftMode:
        """How the draft model draws, where the request leaves it open. Raises InvalidArgument."""
        if sampling.is_greedy:
            return DraftMode.GREEDY
        if self.resolved_rule(sampling) is Rule.REJECTION:
            return DraftMode.SAMPLED
        # Drawn with noise of its own, a draft would match the target's choice only by luck.
        require(self.draft_mode is not DraftMode.SAMPLED, "draft_mode", "sampled", "greedy or coupled under match")
        return self.draft_mode or DraftMode.COUPLED
