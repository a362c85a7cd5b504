"""From records to metrics. No I/O.

- Latencies are those of requests that succeeded; time to first token and end to end count once a request,
  inter-token latency once a token (`Record.gaps`).
- Percentiles interpolate linearly between the two nearest values.
- Tokens per second: output tokens of requests that succeeded, over wall time from the first request's
  start to the last one's end, summed over a variant's slices.
- Goodput: requests that meet the SLO, per second of the same wall time, and as a share of all requests;
  one that failed meets none.
- A round's time: sums of all requests' times by the coordinator's account, over all their target
  forwards, the prompt's included. `coordinator` is what its account leaves of a request's time: waiting
  for a place, tokenising, and text. `client` is what the client saw beyond the coordinator's account: the
  way between the two, and the harness itself.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from paceline.client import Finish
from paceline.errors import InvalidArgument

PARTS = ("queue", "draft", "target", "wire", "coordinator", "client")
Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Arrival:
    """A response with tokens: when it came, in milliseconds since its request was due, and how many it brought."""

    at_ms: float
    tokens: int


@dataclass(frozen=True, slots=True)
class Failure:
    """How a request failed: the gRPC status code's name, and what the server said."""

    status: str
    message: str


@dataclass(frozen=True, slots=True)
class Record:
    """Times in milliseconds since the request was due.

    In a closed loop a request is due when it is sent. In an open loop it is due when the arrival process
    says: a harness that comes late counts against the server rather than going unseen.
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
        """Time to first token; None if none came."""
        return self.arrivals[0].at_ms if self.arrivals else None

    @property
    def e2e_ms(self) -> float | None:
        """Time to the last token; None if none came."""
        return self.arrivals[-1].at_ms if self.arrivals else None

    @property
    def gaps(self) -> list[Arrival]:
        """For each response after the first: milliseconds *per token* since the one before, and its tokens.

        This is inter-token latency as the client sees it. A round's tokens come in one response; each of
        them counts with an equal part of the time since the last response.
        """
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return [Arrival((late.at_ms - early.at_ms) / late.tokens, late.tokens) for early, late in pairs]

    @property
    def mean_itl_ms(self) -> float | None:
        """Mean inter-token latency of this request; None where all its tokens came at once."""
        if len(self.arrivals) < 2:
            return None
        first, last = self.arrivals[0], self.arrivals[-1]
        return (last.at_ms - first.at_ms) / (self.tokens - first.tokens)


@dataclass(frozen=True, slots=True)
class Slo:
    """A request is good if it succeeds within all limits that are set, in milliseconds."""

    # Time to first token.
    ttft: float | None = None
    # The request's mean inter-token latency.
    itl: float | None = None
    # Time to the last token.
    e2e: float | None = None

    @property
    def label(self) -> str:
        """As a user types it."""
        limits = ((field.name, getattr(self, field.name)) for field in fields(self))
        return ",".join(f"{name}={limit:g}" for name, limit in limits if limit is not None)

    def is_met_by(self, record: Record) -> bool:
        if not record.is_ok:
            return False
        times = ((record.ttft_ms, self.ttft), (record.mean_itl_ms, self.itl), (record.e2e_ms, self.e2e))
        return all(time is None or limit is None or time <= limit for time, limit in times)


def parse_slo(text: str) -> Slo:
    """From `ttft=500,itl=50`. Raises InvalidArgument."""
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        limits = {name.strip(): float(value) for name, _, value in pairs}
        ok = len(limits) == len(pairs) and all(0 < limit < math.inf for limit in limits.values())
        if ok:
            return Slo(**limits)
    except (ValueError, TypeError):
        pass
    raise InvalidArgument.field("--slo", text, "of ttft, itl and e2e, each once, in milliseconds > 0: ttft=500,itl=50")


@dataclass(frozen=True, slots=True)
class Spread:
    """How a latency is spread, in milliseconds."""

    # Of values.
    count: int
    mean: float
    p50: float
    p90: float
    p99: float


@dataclass(frozen=True, slots=True)
class Goodput:
    """Requests that meet the SLO."""

    requests_per_second: float
    # Of all requests, in [0, 1].
    share: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one variant did under one load."""

    records: list[Record]
    wall_s: float


@dataclass(frozen=True, slots=True)
class Metrics:
    """A run in numbers. None where nothing was there to be measured."""

    requests: int
    succeeded: int
    # Failed requests by status code.
    failures: dict[str, int]
    wall_s: float
    requests_per_second: float
    prompt_tokens: int
    # Of these the target's cache held already.
    cached_prompt_tokens: int
    output_tokens: int
    tokens_per_second: float
    ttft_ms: Spread | None
    itl_ms: Spread | None
    e2e_ms: Spread | None
    goodput: Goodput | None
    # Accepted over proposed: in all, and at draft position 1, 2, …
    acceptance_rate: float | None
    acceptance_per_position: list[float]
    # Tokens emitted per target forward after the prompt's.
    mean_acceptance_length: float | None
    # Milliseconds per target forward, by part.
    round_ms: dict[str, float]


def metrics_of(run: Run, slo: Slo | None) -> Metrics:
    """All metrics of a run."""
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
    """Mean and percentiles; None of nothing."""
    if not len(values):
        return None
    p50, p90, p99 = np.percentile(values, (50, 90, 99))
    return Spread(len(values), float(values.mean()), float(p50), float(p90), float(p99))


def ttfts_ms(records: Iterable[Record]) -> Values:
    """[num_requests]"""
    return np.array([record.ttft_ms for record in records if record.is_ok and record.arrivals], dtype=np.float64)


def e2es_ms(records: Iterable[Record]) -> Values:
    """[num_requests]"""
    return np.array([record.e2e_ms for record in records if record.is_ok and record.arrivals], dtype=np.float64)


def itls_ms(records: Iterable[Record]) -> Values:
    """[num_tokens], those of each request's first response aside."""
    gaps = [gap for record in records if record.is_ok for gap in record.gaps]
    return np.repeat(np.array([gap.at_ms for gap in gaps], dtype=np.float64), [gap.tokens for gap in gaps])


def goodput(run: Run, slo: Slo) -> Goodput:
    """Requests that meet the SLO, per second and as a share of all."""
    met = sum(slo.is_met_by(record) for record in run.records)
    return Goodput(_over(met, run.wall_s), _over(met, len(run.records)))


def drafts_per_position(finishes: list[Finish]) -> tuple[list[int], list[int]]:
    """Proposed and accepted drafts at position 1, 2, …"""
    longest = max((len(finish.speculation.proposed_per_position) for finish in finishes), default=0)
    proposed, accepted = [0] * longest, [0] * longest
    for finish in finishes:
        for index, count in enumerate(finish.speculation.proposed_per_position):
            proposed[index] += count
        for index, count in enumerate(finish.speculation.accepted_per_position):
            accepted[index] += count
    return proposed, accepted


def mean_acceptance_length(finishes: list[Finish]) -> float | None:
    """Tokens per round over all rounds, not the mean of requests' means."""
    rounds = sum(finish.speculation.rounds for finish in finishes)
    tokens = sum(finish.speculation.mean_acceptance_length * finish.speculation.rounds for finish in finishes)
    return tokens / rounds if rounds else None


def round_parts_ms(records: Iterable[Record]) -> dict[str, float]:
    """Milliseconds per target forward, by part; empty of nothing."""
    sums = dict.fromkeys(PARTS, 0.0)
    forwards = 0
    for record in records:
        if record.finish is None or record.e2e_ms is None:
            continue
        timing = record.finish.timing
        accounted_ms = timing.queued_ms + timing.draft_ms + timing.target_ms + timing.wire_ms
        sums["queue"] += timing.queued_ms
        sums["draft"] += timing.draft_ms
        sums["target"] += timing.target_ms
        sums["wire"] += timing.wire_ms
        sums["coordinator"] += max(0.0, timing.total_ms - accounted_ms)
        sums["client"] += max(0.0, record.e2e_ms - timing.total_ms)
        forwards += record.finish.speculation.rounds + 1
    return {part: total_ms / forwards for part, total_ms in sums.items()} if forwards else {}


def _over(count: float, base: float) -> float:
    """0 where there is nothing to divide by."""
    return count / base if base else 0.0
