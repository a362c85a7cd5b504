"""What a load test asks, and how its requests come."""

import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from paceline.checks import require
from paceline.client import Prompt
from paceline.errors import InvalidArgument
from paceline.speculation import MAX_DRAFT_TOKENS, Drafter, SpeculationParams, parse_draft_length

MAX_CONCURRENCY = 4096
MAX_RATE = 10_000.0
# A slice is long beside its end, where fewer and fewer requests are left, and short beside the
# minutes in which a machine changes its pace.
TURNS_PER_SLICE = 4
SECONDS_PER_SLICE = 10.0


@dataclass(frozen=True, slots=True)
class ClosedLoop:
    """Each of `concurrency` clients sends a request when its last one is answered. Raises InvalidArgument."""

    concurrency: int

    def __post_init__(self) -> None:
        ok = 1 <= self.concurrency <= MAX_CONCURRENCY
        require(ok, "--concurrency", self.concurrency, f"in [1, {MAX_CONCURRENCY}]")

    @property
    def label(self) -> str:
        return f"{self.concurrency} at once"

    @property
    def short_label(self) -> str:
        """For a point of a plot."""
        return str(self.concurrency)

    @property
    def requests_per_slice(self) -> int:
        return TURNS_PER_SLICE * self.concurrency


@dataclass(frozen=True, slots=True)
class OpenLoop:
    """Requests come by chance, `rate` a second, whether or not the others are answered. Raises InvalidArgument."""

    rate: float

    def __post_init__(self) -> None:
        require(0 < self.rate <= MAX_RATE, "--rate", self.rate, f"in (0, {MAX_RATE:.0f}] requests a second")

    @property
    def label(self) -> str:
        return f"{self.rate:g} requests/s"

    @property
    def short_label(self) -> str:
        """For a point of a plot."""
        return f"{self.rate:g}/s"

    @property
    def requests_per_slice(self) -> int:
        return max(TURNS_PER_SLICE, math.ceil(self.rate * SECONDS_PER_SLICE))


Load = ClosedLoop | OpenLoop


def parse_sweep(text: str) -> list[Load]:
    """From `concurrency=1,2,4` or `rate=0.5,1,2`. Raises InvalidArgument."""
    name, _, values = text.partition("=")
    kinds: dict[str, Callable[[str], Load]] = {
        "concurrency": lambda value: ClosedLoop(int(value)),
        "rate": lambda value: OpenLoop(float(value)),
    }
    try:
        loads = [kinds[name](value) for value in values.split(",")]
    except (KeyError, ValueError):
        raise InvalidArgument.field("--sweep", text, "like concurrency=1,2,4 or rate=0.5,1,2") from None
    require(len(set(loads)) == len(loads), "--sweep", text, "a list without repetitions")
    return loads


def poisson_arrivals(rate: float, seed: int) -> Iterator[float]:
    """Arrival times in seconds from the start, without end: the gaps are exponential with mean 1 / rate.

    The same seed gives the same arrivals, and another rate the same ones on another scale.
    """
    source = random.Random(seed)
    now_s = 0.0
    while True:
        now_s += source.expovariate(1.0) / rate
        yield now_s


# More than any run asks.
UNLIMITED = 2**31


@dataclass(frozen=True, slots=True)
class Slice:
    """A variant's turn: which variant, and which requests."""

    variant: int
    requests: range


def blocks(num_variants: int, requests: range, requests_per_slice: int) -> Iterator[list[Slice]]:
    """Each block's slices, in order. A single variant needs no turns: one slice.

    Requests are cut into blocks. A block asks every variant the same requests, one variant after the other:
    a variant's share of a block is a slice. The next block begins with the next variant:

        block 0   off 0-7     model 0-7     ngram 0-7
        block 1   model 8-15  ngram 8-15    off 8-15
        block 2   ngram 16-23 off 16-23     model 16-23

    So a machine that slows down, or a neighbour that comes and goes, hits all variants alike, and none is
    always the first. A slice ends when its last request is answered: no variant runs beside another's leftovers.
    That end, where fewer than all clients are busy, costs each variant the same throughput; only metrics of one
    run with --compare should be compared with one another.
    """
    if num_variants == 1:
        yield [Slice(0, requests)]
        return
    for block, first in enumerate(range(0, len(requests), requests_per_slice)):
        part = requests[first : first + requests_per_slice]
        yield [Slice((block + turn) % num_variants, part) for turn in range(num_variants)]


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


DEFAULT = "default"
OFF = "off"
_DRAFTERS = {drafter.value: drafter for drafter in Drafter}
_ALLOWED = (
    f"names from {DEFAULT}, {OFF}, {', '.join(_DRAFTERS)}, 0 to {MAX_DRAFT_TOKENS}, adaptive, entropy, "
    "or DRAFTER:LENGTH like model:4, separated by commas, none twice"
)


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to speculate, and its name in every table and plot."""

    name: str
    # None: the server's own.
    speculation: SpeculationParams | None = None


def parse_variants(text: str) -> dict[str, dict[str, Any]]:
    """From `off,model,ngram:4,adaptive`: the SpeculationParams fields that each name says. Raises InvalidArgument.

    What a name leaves open is the server's own: `model` its number of draft tokens, `4` its drafter.
    """
    names = [name.strip() for name in text.split(",")]
    try:
        found = {name: _fields_of(name) for name in names}
    except InvalidArgument:
        raise InvalidArgument.field("--compare", text, _ALLOWED) from None
    if len(found) < len(names):
        raise InvalidArgument.field("--compare", text, _ALLOWED)
    return found


def _fields_of(name: str) -> dict[str, Any]:
    if name == DEFAULT:
        return {}
    if name == OFF:
        return {"enabled": False}
    drafter, colon, length = name.partition(":")
    if drafter not in _DRAFTERS:
        return {"enabled": True, "num_draft_tokens": parse_draft_length(name)}
    fields: dict[str, Any] = {"enabled": True, "drafter": _DRAFTERS[drafter]}
    return fields | ({"num_draft_tokens": parse_draft_length(length)} if colon else {})
