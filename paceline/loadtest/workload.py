"""What a load test sends and when."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.checks import require
from paceline.client import Prompt
from paceline.errors import InvalidArgument
from paceline.speculation_params import MAX_DRAFT_TOKENS, Drafter, SpeculationParams, parse_draft_length

MAX_CONCURRENCY = 4096
MAX_RATE = 10_000.0
# Slices are long compared with their ends, when clients run out of requests, and short compared with the minutes over
# which a machine's speed drifts.
TURNS_PER_SLICE = 4
SECONDS_PER_SLICE = 10.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """`concurrency` clients, each of which sends its next request when the previous one has ended."""

    concurrency: int

    def __post_init__(self) -> None:
        ok = 1 <= self.concurrency <= MAX_CONCURRENCY
        require(ok, "--concurrency", self.concurrency, f"in [1, {MAX_CONCURRENCY}]")

    @property
    def label(self) -> str:
        return f"{self.concurrency} at once"

    @property
    def short_label(self) -> str:
        return str(self.concurrency)

    @property
    def requests_per_slice(self) -> int:
        return TURNS_PER_SLICE * self.concurrency


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Poisson arrivals, `rate` per second, however many are running."""

    rate: float

    def __post_init__(self) -> None:
        require(0 < self.rate <= MAX_RATE, "--rate", self.rate, f"in (0, {MAX_RATE:.0f}] requests a second")

    @property
    def label(self) -> str:
        return f"{self.rate:g} requests/s"

    @property
    def short_label(self) -> str:
        return f"{self.rate:g}/s"

    @property
    def requests_per_slice(self) -> int:
        return max(TURNS_PER_SLICE, math.ceil(self.rate * SECONDS_PER_SLICE))


Load = ClosedLoop | OpenLoop


def parse_sweep(text: str) -> list[Load]:
    """Parses `concurrency=1,2,4` or `rate=0.5,1,2`. Raises InvalidArgument."""
    name, _, values = text.partition("=")
    kinds: dict[str, Callable[[str], Load]] = {
        "concurrency": lambda value: ClosedLoop(int(value)),
        "rate": lambda value: OpenLoop(float(value)),
    }
    try:
        loads = [kinds[name](value) for value in values.split(",")]
    except (KeyError, ValueError):
        raise InvalidArgument.of_value("--sweep", text, "like concurrency=1,2,4 or rate=0.5,1,2") from None
    require(len(set(loads)) == len(loads), "--sweep", text, "a list without repetitions")
    return loads


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Yields arrival times in seconds, endlessly, with exponential gaps of mean 1 / rate. The rate only scales them."""
    source = random.Random(seed)
    now_s = 0.0
    while True:
        now_s += source.expovariate(1.0) / rate
        yield now_s


# More requests than any run sends.
UNLIMITED = 2**31


@dataclass(frozen=True, slots=True)
class Slice:
    variant: int
    requests: range


def blocks(num_variants: int, requests: range, requests_per_slice: int) -> Iterator[list[Slice]]:
    """Yields each block's slices in order. A single variant gets one slice.

    Every variant answers each block's requests in turn, and each block starts with the next variant:

        block 0   off 0-7     model 0-7     ngram 0-7
        block 1   model 8-15  ngram 8-15    off 8-15
        block 2   ngram 16-23 off 16-23     model 16-23

    A disturbance then affects all variants alike. Slices never overlap; the tail of each lowers every variant's
    throughput equally, so compare only variants of one run.
    """
    if num_variants == 1:
        yield [Slice(0, requests)]
        return
    for block, first in enumerate(range(0, len(requests), requests_per_slice)):
        part = requests[first : first + requests_per_slice]
        yield [Slice((block + turn) % num_variants, part) for turn in range(num_variants)]


@dataclass(frozen=True, slots=True)
class Lengths:
    prompt: int
    output: int

    def __post_init__(self) -> None:
        ok = self.prompt >= 1 and self.output >= 1
        require(ok, "--synthetic", f"{self.prompt}:{self.output}", "IN:OUT, both at least 1 token")

    def check(self, max_model_len: int) -> None:
        """Raises InvalidArgument beyond `max_model_len`."""
        fits = self.prompt + self.output <= max_model_len
        allowed = f"at most {max_model_len} tokens in all, the model's longest sequence"
        require(fits, "--synthetic", f"{self.prompt}:{self.output}", allowed)


def parse_lengths(text: str) -> Lengths:
    """Parses IN:OUT. Raises InvalidArgument."""
    prompt, _, output = text.partition(":")
    ok = prompt.isdecimal() and output.isdecimal()
    require(ok, "--synthetic", text, "IN:OUT, both numbers of tokens, like 512:128")
    return Lengths(int(prompt), int(output))


def synthetic_prompt(num_tokens: int, token_ids: range, key: str) -> Prompt:
    """Returns random ids, determined by `key`."""
    source = random.Random(key)
    return source.choices(token_ids, k=num_tokens)


DEFAULT = "default"
OFF = "off"
_DRAFTERS = {drafter.value: drafter for drafter in Drafter}
_ALLOWED = (
    f"names from {DEFAULT}, {OFF}, {', '.join(_DRAFTERS)}, 0 to {MAX_DRAFT_TOKENS}, adaptive, entropy, "
    "or DRAFTER:LENGTH like model:4, separated by commas, none twice"
)


@dataclass(frozen=True, slots=True)
class Variant:
    name: str
    # None leaves everything to the server.
    speculation: SpeculationParams | None = None


def parse_variants(text: str) -> dict[str, dict[str, Any]]:
    """Parses `off,model,ngram:4,adaptive` into SpeculationParams fields by name. Raises InvalidArgument.

    The server's defaults apply to the rest: the length for `model`, the drafter for `4`.
    """
    names = [name.strip() for name in text.split(",")]
    try:
        found = {name: _fields_of(name) for name in names}
    except InvalidArgument:
        raise InvalidArgument.of_value("--compare", text, _ALLOWED) from None
    if len(found) < len(names):
        raise InvalidArgument.of_value("--compare", text, _ALLOWED)
    return found


def _fields_of(name: str) -> dict[str, Any]:
    if name == DEFAULT:
        return {}
    if name == OFF:
        return {"enabled": False}
    drafter, colon, length = name.partition(":")
    if drafter not in _DRAFTERS:
        return {"enabled": True, "num_speculative_tokens": parse_draft_length(name)}
    fields: dict[str, Any] = {"enabled": True, "drafter": _DRAFTERS[drafter]}
    return fields | ({"num_speculative_tokens": parse_draft_length(length)} if colon else {})
