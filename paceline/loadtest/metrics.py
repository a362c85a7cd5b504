"""Computes metrics from records of requests. No I/O.

- Latencies cover successful requests. Time to first token and end-to-end latency count once per request, inter-token
  latency once per token. Percentiles interpolate linearly.
- Tokens per second: output tokens of successful requests over the wall time of the variant's slices.
- Goodput: successful requests within the SLO, per second of wall time and as a share of all requests.
- A round's time: as reported by the coordinator, per target forward pass, prefill included. `coordinator` is the rest of
  its total: admission, tokenization, detokenization. `client` is the time beyond it: transport and the load test.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from paceline.client import Finish
from paceline.errors import InvalidArgument

PARTS = ("queue", "draft", "target", "rpc", "coordinator", "client")
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A response with tokens. Milliseconds since the request was due."""

    at_ms: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    status: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """One request as its client saw it. Times are milliseconds since the request was due.

    A closed loop's request is due when it is sent, an open loop's at its arrival time, so a late load test shows as
    latency.
    """

    index: int
    arrivals: tuple[Arrival, ...]
    finish: Finish | None = None
    failure: Failure | None = None

    @property
    def is_ok(self) -> bool:
        return self.failure is None

    @property
    def tokens(self) -> int:
        return sum(arrival.tokens for arrival in self.arrivals)

    @property
    def ttft_ms(self) -> float | None:
        return self.arrivals[0].at_ms if self.arrivals else None

    @property
    def e2e_ms(self) -> float | None:
        return self.arrivals[-1].at_ms if self.arrivals else None

    @property
    def gaps(self) -> list[Arrival]:
        """Returns, for all responses but the first, milliseconds *per token* since the previous one, and tokens.

        A round's tokens arrive together and share its latency equally.
        """
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [Arrival((late.at_ms - early.at_ms) / late.tokens, late.tokens) for early, late in pairs]

    @property
    def mean_itl_ms(self) -> float | None:
        """None if all tokens came in one response."""
        if len(self.arrivals) < 2:
            return None
        first, last = self.arrivals[0], self.arrivals[-1]
        return (last.at_ms - first.at_ms) / (self.tokens - first.tokens)


@dataclass(frozen=True, slots=True)
class Slo:
    """Latency limits in milliseconds; None: no limit."""

    ttft: float | None = None
    # Limits the request's mean.
    itl: float | None = None
    e2e: float | None = None

    @property
    def label(self) -> str:
        limits = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ",".join(f"{name}={limit:g}" for name, limit in limits if limit is not None)

    def is_met_by(self, record: Record) -> bool:
        if not record.is_ok:
            return False
        times = ((record.ttft_ms, self.ttft), (record.mean_itl_ms, self.itl), (record.e2e_ms, self.e2e))
        return all(time is None or limit is None or time <= limit for time, limit in times)


def parse_slo(text: str) -> Slo:
    """Parses `ttft=500,itl=50`. Raises InvalidArgument."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        limits = {name.strip(): float(value) for name, _, value in pairs}
        ok = len(limits) == len(pairs) and all(0 < limit < math.inf for limit in limits.values())
        if ok:
            return Slo(**limits)
    except (ValueError, TypeError):
        pass
    raise InvalidArgument.of_value(
        "--slo", text, "of ttft, itl and e2e, each once, in milliseconds > 0: ttft=500,itl=50"
    )


@dataclass(frozen=True, slots=True)
class Spread:
    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Goodput:
    requests_per_second: float
    share: float


@dataclass(frozen=True, slots=True)
class Run:
    records: list[Record]
    wall_s: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """Metrics of a run; None if there was nothing to measure."""

    requests: int
    succeeded: int
    failures: dict[str, int]
    wall_s: float
    requests_per_second: float
    prompt_tokens: int
    # Prompt tokens found in the target's prefix cache.
    cached_prompt_tokens: int
    output_tokens: int
    tokens_per_second: float
    ttft_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    goodput: Goodput | None
    # Accepted / proposed drafts: overall, and at draft position 1, 2, …
    acceptance_rate: float | None
    acceptance_per_position: list[float]
    # Tokens per target forward pass, prefill aside.
    mean_acceptance_length: float | None
    # Milliseconds per target forward pass, by PARTS.
    round_ms: dict[str, float]


def metrics_of(run: Run, slo: Slo | None) -> Metrics:
    good = [record for record in run.records if record.is_ok]
    finishes = [record.finish for record in good if record.finish is not None]
    failures = Counter(record.failure.status for record in run.records if record.failure is not None)
    tokens = sum(record.tokens for record in good)
    proposed, accepted = drafts_per_position(finishes)
    return Metrics(
        requests=len(run.records),
        succeeded=len(good),
        failures=dict(failures.most_common()),
        wall_s=run.wall_s,
        requests_per_second=_over(len(good), run.wall_s),
        prompt_tokens=sum(finish.prompt_tokens for finish in finishes),
        cached_prompt_tokens=sum(finish.cached_prompt_tokens for finish in finishes),
        output_tokens=tokens,
        tokens_per_second=_over(tokens, run.wall_s),
        ttft_ms=spread(ttfts_ms(run.records)),
        itl_ms=spread(itls_ms(run.records)),
        e2e_ms=spread(e2es_ms(run.records)),
        goodput=goodput(run, slo) if slo is not None else None,
        acceptance_rate=sum(accepted) / sum(proposed) if sum(proposed) else None,
        acceptance_per_position=[_over(yes, all_) for yes, all_ in zip(accepted, proposed, strict=True)],
        mean_acceptance_length=mean_acceptance_length(finishes),
        round_ms=round_parts_ms(good),
    )


def spread(values: Values) -> Spread | None:
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(len(values), float(values.mean()), float(p50), float(p90), float(p99))


def ttfts_ms(records: Iterable[Record]) -> Values:
    return np.array([record.ttft_ms for record in records if record.is_ok and record.arrivals], dtype=np.float64)


def e2es_ms(records: Iterable[Record]) -> Values:
    return np.array([record.e2e_ms for record in records if record.is_ok and record.arrivals], dtype=np.float64)


def itls_ms(records: Iterable[Record]) -> Values:
    """Returns [num_tokens], without first responses."""
    gaps = [gap for record in records if record.is_ok for gap in record.gaps]
    return np.repeat(np.array([gap.at_ms for gap in gaps], dtype=np.float64), [gap.tokens for gap in gaps])


def goodput(run: Run, slo: Slo) -> Goodput:
    met = sum(slo.is_met_by(record) for record in run.records)
    return Goodput(_over(met, run.wall_s), _over(met, len(run.records)))


def drafts_per_position(finishes: list[Finish]) -> tuple[list[int], list[int]]:
    longest = max((len(finish.speculation.proposed_per_position) for finish in finishes), default=0)
    proposed, accepted = [0] * longest, [0] * longest
    for finish in finishes:
        for index, count in enumerate(finish.speculation.proposed_per_position):
            proposed[index] += count
        for index, count in enumerate(finish.speculation.accepted_per_position):
            accepted[index] += count
    return proposed, accepted


def mean_acceptance_length(finishes: list[Finish]) -> float | None:
    """Averages over rounds, not requests."""
    rounds = sum(finish.speculation.rounds for finish in finishes)
    tokens = sum(finish.speculation.mean_acceptance_length * finish.speculation.rounds for finish in finishes)
    return tokens / rounds if rounds else None


def round_parts_ms(records: Iterable[Record]) -> dict[str, float]:
    sums = dict.fromkeys(PARTS, 0.0)
    forwards = 0
    for record in records:
        if record.finish is None or record.e2e_ms is None:
            continue
        timing = record.finish.timing
        accounted_ms = timing.queued_ms + timing.draft_ms + timing.target_ms + timing.rpc_ms
        sums["queue"] += timing.queued_ms
        sums["draft"] += timing.draft_ms
        sums["target"] += timing.target_ms
        sums["rpc"] += timing.rpc_ms
        sums["coordinator"] += max(0.0, timing.total_ms - accounted_ms)
        sums["client"] += max(0.0, record.e2e_ms - timing.total_ms)
        forwards += record.finish.speculation.rounds + 1
    return {part: total_ms / forwards for part, total_ms in sums.items()} if forwards else {}


def _over(count: float, base: float) -> float:
    return count / base if base else 0.0
