import math
from collections.abc import Collection, Mapping, Sized
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from typing import Any, NamedTuple

from paceline.checks import is_token_id, require, require_at_most, require_type

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024
# Entries in a list of token ids or biases; each costs time in every step.
MAX_LISTED_IDS = 16_384
DEFAULT_MAX_TOKENS = 256
MAX_SALT_CHARACTERS = 256
MAX_ID_CHARACTERS = 256
MAX_SAMPLES = 64
MAX_LOGPROBS = 20
MAX_BEAMS = 10
# 0.01 as a message carries it: rounded to float32.
MIN_REPETITION_PENALTY = 0.01 * (1 - 2**-24)
MAX_REPETITION_PENALTY = 100.0


MAX_LENGTHS = {
    "stop": (MAX_STOP_STRINGS, "strings"),
    **dict.fromkeys(
        ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "logit_bias"), (MAX_LISTED_IDS, "token ids")
    ),
}


def check_lengths(lists: Mapping[str, Any] | Any) -> None:
    """Raises InvalidArgument if one of MAX_LENGTHS is too long, before anything reads or copies it.

    `lists`: by name, or as attributes of parameters or of their message. What has no length is of another type, which is
    another error.
    """
    for name, (most, unit) in MAX_LENGTHS.items():
        value = lists.get(name) if isinstance(lists, Mapping) else getattr(lists, name)
        if isinstance(value, Sized) and not isinstance(value, str):
            require_at_most(most, len(value), name, unit)


class _Range(NamedTuple):
    """What a number may be. `words`: how an error says the range."""

    kind: type
    low: float
    high: float
    words: str
    is_optional: bool


_KINDS: dict[type, str] = {Integral: "a whole number", Real: "a number"}


def _whole(default: int | None, low: float = -math.inf, high: float = math.inf, words: str = "") -> Any:
    return _in_range(Integral, default, low, high, words)


def _number(default: float, low: float, high: float, words: str = "") -> Any:
    return _in_range(Real, default, low, high, words)


def _in_range(kind: type, default: float | None, low: float, high: float, words: str) -> Any:
    allowed = _Range(kind, low, high, words or f"in [{low}, {high}]", default is None)
    return field(default=default, metadata={"range": allowed})


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are drawn and when to stop. Raises InvalidArgument on construction.

    max_tokens: maximum number of tokens to generate; 0 only reads the prompt, to score or cache it.
    min_tokens: minimum number of tokens before the text may end.
    temperature: at least 0; 0 takes the likeliest token.
    top_k: keep the k likeliest tokens; 0 keeps all.
    top_p: keep the likeliest tokens up to this mass, in [0, 1]; 0 keeps the likeliest one.
    min_p: keep tokens with at least this fraction of the likeliest token's probability, in [0, 1].
    seed: repeats a text; None: a random one, which Finish.seed reports.
    stop: the text ends before the first of these strings; at most 64.
    stop_token_ids: the text ends after the first of these tokens.
    ignore_eos: go on past the model's end of text.
    repetition_penalty: in [0.01, 100]; above 1, tokens of prompt and output are less likely.
    presence_penalty: in [-2, 2]; subtracted from the logit of each token in the output.
    frequency_penalty: in [-2, 2]; subtracted for each occurrence of a token in the output.
    logit_bias: added to the logits of these token ids, in [-100, 100].
    allowed_token_ids: if given, only these can be drawn.
    banned_token_ids: these can't be drawn.
    n: independent samples of one prompt, 1 to 64.
    logprobs: report log-probabilities of each token and of this many likeliest ones, 0 to 20; None: no report.
    prompt_logprobs: likewise for the prompt's tokens from the second on.
    beams: width of beam search, 1 to 10; above 1 the answer is the best hypothesis, sent whole at the end.
    length_penalty: for beams, in [-10, 10]: a hypothesis's score is its log-probability / (its tokens) ^ length_penalty.
    """

    max_tokens: int = _whole(DEFAULT_MAX_TOKENS, 0, 2**31 - 1)
    # At most max_tokens.
    min_tokens: int = _whole(0)
    temperature: float = _number(0.0, 0, math.inf, "a finite number >= 0")
    top_k: int = _whole(0, 0, 2**31 - 1, "in [0, 2147483647] (0 keeps all)")
    top_p: float = _number(1.0, 0, 1)
    min_p: float = _number(0.0, 0, 1)
    seed: int | None = _whole(None, 0, 2**64 - 1, "in [0, 2^64)")
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    repetition_penalty: float = _number(1.0, MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY, "in [0.01, 100]")
    presence_penalty: float = _number(0.0, -2, 2)
    frequency_penalty: float = _number(0.0, -2, 2)
    logit_bias: dict[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    n: int = _whole(1, 1, MAX_SAMPLES)
    logprobs: int | None = _whole(None, 0, MAX_LOGPROBS)
    prompt_logprobs: int | None = _whole(None, 0, MAX_LOGPROBS)
    beams: int = _whole(1, 1, MAX_BEAMS)
    length_penalty: float = _number(1.0, -10, 10)

    def __post_init__(self) -> None:
        check_lengths(self)
        self._check_types()
        for name, allowed in _RANGES.items():
            value = getattr(self, name)
            fits = value is None or (allowed.low <= value <= allowed.high and value != math.inf)
            require(fits, name, value, allowed.words)
        require(0 <= self.min_tokens <= self.max_tokens, "min_tokens", self.min_tokens, "in [0, max_tokens]")
        for text in self.stop:
            require(
                1 <= len(text) <= MAX_STOP_CHARACTERS, "stop", text, f"strings of 1 to {MAX_STOP_CHARACTERS} characters"
            )
        for token_id, bias in self.logit_bias.items():
            require(-100 <= bias <= 100, f"logit_bias[{token_id}]", bias, "in [-100, 100]")
        self._check_beams()

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0

    @property
    def is_untruncated(self) -> bool:
        return not (self.is_greedy or self.top_k or self.top_p < 1 or self.min_p)

    @property
    def has_penalties(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    def check_token_ids(
        self, vocab_size: int, eos_token_ids: tuple[int, ...] = (), drawn: Collection[int] | None = None
    ) -> None:
        """Raises InvalidArgument if an id is outside the vocabulary, or no token is left to draw of `drawn`, by default of all."""
        for name in ("stop_token_ids", "logit_bias", "allowed_token_ids", "banned_token_ids"):
            worst = max(getattr(self, name), default=0)
            require(worst < vocab_size, name, worst, f"in [0, {vocab_size})")
        banned = set(self.banned_token_ids)
        if self.min_tokens > 0:
            banned |= {*self.stop_token_ids, *eos_token_ids}
        if drawn is None:
            drawn = range(vocab_size)
        if self.allowed_token_ids:
            num_drawable = sum(token in drawn for token in {*self.allowed_token_ids} - banned)
        else:
            num_drawable = len(drawn) - sum(token in drawn for token in banned)
        require(num_drawable > 0, "banned_token_ids", "all that could be drawn", "such that a token is left to draw")
        ends = {*self.stop_token_ids, *eos_token_ids}
        # A step of beam search needs a likeliest token for each beam, besides those that end the text.
        fits = self.beams == 1 or self.beams + len(ends) <= MAX_LOGPROBS
        most = f"at most {MAX_LOGPROBS} together with the {len(ends)} tokens that end the text"
        require(fits, "beams", self.beams, most)

    def _check_types(self) -> None:
        for name, allowed in _RANGES.items():
            if not (allowed.is_optional and getattr(self, name) is None):
                more = " or None" if allowed.is_optional else ""
                require_type(self, allowed.kind, f"{_KINDS[allowed.kind]}{more}", name)
        require_type(self, bool, "True or False", "ignore_eos")
        is_list = isinstance(self.stop, tuple | list) and all(isinstance(text, str) for text in self.stop)
        require(is_list, "stop", self.stop, "a list or tuple of texts")
        # A lone surrogate can't be encoded.
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
        """Refuses parameters that draw or change probabilities: beams are the target's likeliest texts."""
        if self.beams == 1:
            require(self.length_penalty == 1, "length_penalty", self.length_penalty, "1 without beams")
            return
        require(self.max_tokens > 0, "max_tokens", self.max_tokens, "at least 1 with beams")
        neutral = {"temperature": 0, "min_tokens": 0, "n": 1, "logprobs": None, "prompt_logprobs": None}
        neutral |= {"repetition_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
        for name, value in neutral.items():
            require(getattr(self, name) == value, name, getattr(self, name), f"{value} with beams")
        for name in ("stop", "logit_bias", "allowed_token_ids", "banned_token_ids"):
            require(not getattr(self, name), name, getattr(self, name), "empty with beams")


_RANGES: dict[str, _Range] = {each.name: each.metadata["range"] for each in fields(SamplingParams) if each.metadata}
