from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.loadtest.metrics import PARTS, Metrics, Record, Run, Slo, Spread, metrics_of
from paceline.loadtest.workload import Load

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class Point:
    load: Load
    runs: dict[str, Run]
    metrics: dict[str, Metrics]

    @classmethod
    def of(cls, load: Load, runs: dict[str, Run], slo: Slo | None) -> "Point":
        return cls(load, runs, {name: metrics_of(run, slo) for name, run in runs.items()})


@dataclass(frozen=True, slots=True)
class Report:
    # Local time with its offset, ISO 8601.
    began: str
    # Models, data types and version.
    deployment: dict[str, str]
    # What was measured, for the reader.
    settings: dict[str, str]
    slo: Slo | None
    points: list[Point]

    @property
    def records(self) -> list[Record]:
        return [record for point in self.points for run in point.runs.values() for record in run.records]

    @property
    def is_sweep(self) -> bool:
        return len(self.points) > 1


def as_record(report: Report) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "began": report.began,
        "deployment": report.deployment,
        "settings": report.settings,
        "slo_ms": None if report.slo is None else asdict(report.slo),
        "points": [
            {
                "load": asdict(point.load),
                "variants": [
                    {"name": name, **asdict(metrics), "records": [_request(each) for each in point.runs[name].records]}
                    for name, metrics in point.metrics.items()
                ],
            }
            for point in report.points
        ],
    }


def _request(record: Record) -> dict[str, Any]:
    return {
        "index": record.index,
        "tokens": record.tokens,
        "ttft_ms": record.ttft_ms,
        "itl_ms": record.mean_itl_ms,
        "e2e_ms": record.e2e_ms,
        "failure": None if record.failure is None else asdict(record.failure),
    }


NOTHING = "–"
# With fewer values the 99th percentile is little more than the maximum.
VALUES_FOR_P99 = 100


@dataclass(frozen=True, slots=True)
class Group:
    """Rows under a heading: a label, and a cell per variant."""

    heading: str
    rows: list[tuple[str, list[str]]]


def groups_of(point: Point, slo: Slo | None) -> list[Group]:
    all_ = list(point.metrics.values())
    groups = [
        _throughput(next(iter(point.metrics)), all_, slo),
        *(
            Group(heading, _spread_rows([getattr(metrics, name) for metrics in all_]))
            for heading, name in (
                ("time to first token, ms", "ttft_ms"),
                ("inter-token latency, ms", "itl_ms"),
                ("end to end, ms", "e2e_ms"),
            )
        ),
        _speculation(all_),
        Group(
            "ms per target forward pass",
            [(part, [number(metrics.round_ms.get(part)) for metrics in all_]) for part in PARTS],
        ),
    ]
    statuses = sorted({status for metrics in all_ for status in metrics.failures})
    if statuses:
        rows = [(status, [str(metrics.failures.get(status, 0)) for metrics in all_]) for status in statuses]
        groups.append(Group("failures by status code", rows))
    return groups


def number(value: float | None) -> str:
    if value is None:
        return NOTHING
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def percent(share: float | None) -> str:
    return NOTHING if share is None else f"{share:.0%}"


def of_spread(spread: Spread | None, name: str) -> str:
    if spread is None or (name == "p99" and spread.count < VALUES_FOR_P99):
        return NOTHING
    return number(getattr(spread, name))


def _row(label: str, all_: list[Metrics], cell: Callable[[Metrics], str]) -> tuple[str, list[str]]:
    return label, [cell(metrics) for metrics in all_]


def _throughput(first: str, all_: list[Metrics], slo: Slo | None) -> Group:
    base = all_[0].tokens_per_second
    rows = [
        _row("requests", all_, lambda metrics: str(metrics.requests)),
        _row("failed", all_, lambda metrics: str(metrics.requests - metrics.succeeded)),
        _row("prompt tokens", all_, lambda metrics: f"{metrics.prompt_tokens:,}"),
        _row("prompt tokens cached", all_, lambda metrics: f"{metrics.cached_prompt_tokens:,}"),
        _row("output tokens", all_, lambda metrics: f"{metrics.output_tokens:,}"),
        _row("wall time, s", all_, lambda metrics: number(metrics.wall_s)),
        _row("tokens per second", all_, lambda metrics: number(metrics.tokens_per_second)),
    ]
    if len(all_) > 1 and base:
        rows.append(_row(f"speed-up over {first}", all_, lambda metrics: f"{metrics.tokens_per_second / base:.2f} x"))
    rows.append(_row("requests per second", all_, lambda metrics: number(metrics.requests_per_second)))
    if slo is not None:
        good = [metrics.goodput for metrics in all_]
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


def _speculation(all_: list[Metrics]) -> Group:
    longest = max(len(metrics.acceptance_per_position) for metrics in all_)
    rows = [
        _row("mean acceptance length", all_, lambda metrics: number(metrics.mean_acceptance_length)),
        _row("acceptance rate", all_, lambda metrics: percent(metrics.acceptance_rate)),
    ]
    for index in range(longest):
        cells = [[percent(rate) for rate in metrics.acceptance_per_position[index:][:1]] for metrics in all_]
        rows.append((f"at position {index + 1}", [cell[0] if cell else NOTHING for cell in cells]))
    return Group("speculation", rows)


BAR_WIDTH = 16
# Wider than any table, in characters.
UNBOUNDED = 10_000


def print_report(console: Console, report: Report) -> None:
    under = f"; goodput under {report.slo.label} ms" if report.slo is not None else ""
    for point in report.points:
        console.print(f"\n{point.load.label}{under}", style="bold", markup=False, soft_wrap=True)
        for table in fitting(console, point, report.slo):
            console.print(table)
    if report.is_sweep:
        console.print("\nthroughput against latency, ms", style="bold")
        table = sweep_table(report, with_bars=True)
        console.print(table if fits(console, table) else sweep_table(report, with_bars=False))
    for failure in first_failures(report):
        console.print(failure, style="red", markup=False, soft_wrap=True)


def fitting(console: Console, point: Point, slo: Slo | None) -> Iterator[Table]:
    """Yields tables of as many variants as fit side by side."""
    names: list[str] = []
    for name in point.metrics:
        if names and not fits(console, point_table(point, slo, [*names, name])):
            yield point_table(point, slo, names)
            names = []
        names.append(name)
    yield point_table(point, slo, names)


def fits(console: Console, table: Table) -> bool:
    unbounded = console.options.update(max_width=UNBOUNDED)
    return console.measure(table, options=unbounded).maximum <= console.width


def point_table(point: Point, slo: Slo | None, names: list[str]) -> Table:
    columns = [column for column, name in enumerate(point.metrics) if name in names]
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(Text(name), justify="right", no_wrap=True)
    for group in groups_of(point, slo):
        table.add_section()
        table.add_row(Text(group.heading, style="bold"))
        for label, cells in group.rows:
            table.add_row(Text(f"  {label}"), *(Text(cells[column]) for column in columns))
    return table


def sweep_table(report: Report, with_bars: bool) -> Table:
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("load", no_wrap=True)
    table.add_column("variant")
    for heading in ("tokens/s", "ttft p50", "itl p50", "e2e p50"):
        table.add_column(heading, justify="right")
    if with_bars:
        table.add_column("tokens/s", min_width=BAR_WIDTH, no_wrap=True)
    top = max(metrics.tokens_per_second for point in report.points for metrics in point.metrics.values())
    for point in report.points:
        table.add_section()
        for name, metrics in point.metrics.items():
            spreads = (metrics.ttft_ms, metrics.itl_ms, metrics.e2e_ms)
            bar = "█" * round(BAR_WIDTH * metrics.tokens_per_second / top) if top else ""
            table.add_row(
                point.load.label, Text(name), number(metrics.tokens_per_second),
                *(of_spread(spread, "p50") for spread in spreads),
                *([Text(bar, style="cyan")] if with_bars else []),
            )  # fmt: skip
    return table


def first_failures(report: Report) -> list[str]:
    said: dict[str, str] = {}
    for record in report.records:
        if record.failure is not None:
            said.setdefault(record.failure.status, " ".join(record.failure.message.split()))
    return [f"{status}: {message}" for status, message in said.items()]
