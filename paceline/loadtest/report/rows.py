"""A point's figures as rows of text: what the terminal's table and the page's have in common."""

from collections.abc import Callable
from dataclasses import dataclass

from paceline.loadtest.figures import PARTS, Figures, Spread
from paceline.loadtest.report.report import Point
from paceline.loadtest.slo import Slo

NOTHING = "–"
# Of fewer values the 99th percentile is hardly more than the largest.
VALUES_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under one heading: a label each, and a cell for each variant."""

    heading: str
    rows: list[tuple[str, list[str]]]


def groups_of(point: Point, slo: Slo | None) -> list[Group]:
    """All figures of a point. Where nothing was measured, a cell says so."""
    all_ = list(point.figures.values())
    groups = [
        _throughput(next(iter(point.figures)), all_, slo),
        *(
            Group(heading, _spread_rows([getattr(figures, name) for figures in all_]))
            for heading, name in (
                ("time to first token, ms", "ttft_ms"),
                ("inter-token latency, ms", "itl_ms"),
                ("end to end, ms", "e2e_ms"),
            )
        ),
        _speculation(all_),
        Group(
            "ms per target forward",
            [(part, [number(figures.round_ms.get(part)) for figures in all_]) for part in PARTS],
        ),
    ]
    statuses = sorted({status for figures in all_ for status in figures.failures})
    if statuses:
        rows = [(status, [str(figures.failures.get(status, 0)) for figures in all_]) for status in statuses]
        groups.append(Group("failures by status code", rows))
    return groups


def number(value: float | None) -> str:
    """Three digits that matter, and no more than a person reads."""
    if value is None:
        return NOTHING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def of_spread(spread: Spread | None, name: str) -> str:
    """Mean or percentile; nothing for a 99th percentile of too few values."""
    if spread is None or (name == "p99" and spread.count < VALUES_FOR_P99):
        return NOTHING
    return number(getattr(spread, name))


def _row(label: str, all_: list[Figures], cell: Callable[[Figures], str]) -> tuple[str, list[str]]:
    return label, [cell(figures) for figures in all_]


def _throughput(first: str, all_: list[Figures], slo: Slo | None) -> Group:
    base = all_[0].tokens_per_second
    rows = [
        _row("requests", all_, lambda figures: str(figures.requests)),
        _row("failed", all_, lambda figures: str(figures.requests - figures.succeeded)),
        _row("prompt tokens", all_, lambda figures: f"{figures.prompt_tokens:,}"),
        _row("prompt tokens cached", all_, lambda figures: f"{figures.cached_prompt_tokens:,}"),
        _row("output tokens", all_, lambda figures: f"{figures.output_tokens:,}"),
        _row("wall time, s", all_, lambda figures: number(figures.wall_s)),
        _row("tokens per second", all_, lambda figures: number(figures.tokens_per_second)),
    ]
    if len(all_) > 1 and base:
        rows.append(_row(f"speed-up over {first}", all_, lambda figures: f"{figures.tokens_per_second / base:.2f} x"))
    rows.append(_row("requests per second", all_, lambda figures: number(figures.requests_per_second)))
    if slo is not None:
        good = [figures.goodput for figures in all_]
        rows.append(("goodput per second", [number(each.requests_per_second if each else None) for each in good]))
        rows.append(("goodput, share", [percent(each.share if each else None) for each in good]))
    return Group("throughput", rows)


def _spread_rows(spreads: list[Spread | None]) -> list[tuple[str, list[str]]]:
    names = ("mean", "p50", "p90", "p99")
    needs = f" (needs {VALUES_FOR_P99})"
    lacking = any(each is not None and each.count < VALUES_FOR_P99 for each in spreads)
    return [
        (name + (needs if lacking and name == "p99" else ""), [of_spread(each, name) for each in spreads])
        for name in names
    ]


def _speculation(all_: list[Figures]) -> Group:
    longest = max(len(figures.acceptance_per_position) for figures in all_)
    rows = [
        _row("mean acceptance length", all_, lambda figures: number(figures.mean_acceptance_length)),
        _row("acceptance rate", all_, lambda figures: percent(figures.acceptance_rate)),
    ]
    for index in range(longest):
        cells = [[percent(rate) for rate in figures.acceptance_per_position[index:][:1]] for figures in all_]
        rows.append((f"at position {index + 1}", [cell[0] if cell else NOTHING for cell in cells]))
    return Group("speculation", rows)
