"""Figures in the terminal."""

from collections.abc import Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from paceline.loadtest.report.report import Point, Report
from paceline.loadtest.report.rows import groups_of, number, of_spread
from paceline.loadtest.slo import Slo

BAR_WIDTH = 16
# Characters, more than any table has.
UNBOUNDED = 10_000


def print_report(console: Console, report: Report) -> None:
    """A table for each point, and after a sweep one of them all."""
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
    """Tables of the variants: as many side by side as the console is wide, at least one."""
    names: list[str] = []
    for name in point.figures:
        if names and not fits(console, point_table(point, slo, [*names, name])):
            yield point_table(point, slo, names)
            names = []
        names.append(name)
    yield point_table(point, slo, names)


def fits(console: Console, table: Table) -> bool:
    """Whether nothing of a table is cut."""
    unbounded = console.options.update(max_width=UNBOUNDED)
    return console.measure(table, options=unbounded).maximum <= console.width


def point_table(point: Point, slo: Slo | None, names: list[str]) -> Table:
    """A column for each variant of `names`."""
    columns = [column for column, name in enumerate(point.figures) if name in names]
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
    """Throughput against latency: a row for each load and variant, where asked with a bar as long as its throughput."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("load", no_wrap=True)
    table.add_column("variant")
    for heading in ("tokens/s", "ttft p50", "itl p50", "e2e p50"):
        table.add_column(heading, justify="right")
    if with_bars:
        table.add_column("tokens/s", min_width=BAR_WIDTH, no_wrap=True)
    top = max(figures.tokens_per_second for point in report.points for figures in point.figures.values())
    for point in report.points:
        table.add_section()
        for name, figures in point.figures.items():
            spreads = (figures.ttft_ms, figures.itl_ms, figures.e2e_ms)
            bar = "█" * round(BAR_WIDTH * figures.tokens_per_second / top) if top else ""
            table.add_row(
                point.load.label, Text(name), number(figures.tokens_per_second),
                *(of_spread(spread, "p50") for spread in spreads),
                *([Text(bar, style="cyan")] if with_bars else []),
            )  # fmt: skip
    return table


def first_failures(report: Report) -> list[str]:
    """For each status code what the first such answer said, as one line."""
    said: dict[str, str] = {}
    for record in report.records:
        if record.failure is not None:
            said.setdefault(record.failure.status, " ".join(record.failure.message.split()))
    return [f"{status}: {message}" for status, message in said.items()]
