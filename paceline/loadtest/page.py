"""Renders a report as a self-contained HTML page."""

from datetime import datetime
from html import escape

import numpy as np

from paceline.loadtest import charts
from paceline.loadtest.charts import Axes, Series
from paceline.loadtest.metrics import PARTS, Metrics, Slo, Values, e2es_ms, itls_ms, ttfts_ms
from paceline.loadtest.report import (
    VALUES_FOR_P99,
    Point,
    Report,
    first_failures,
    groups_of,
    number,
    of_spread,
    percent,
)

# Name, values, and what is counted.
LATENCIES = (
    ("time to first token", ttfts_ms, "requests"),
    ("inter-token latency", itls_ms, "tokens"),
    ("end to end", e2es_ms, "requests"),
)
# A few outliers beyond it would press the rest against the axis.
LAST_PERCENTILE = 99
DEFINITIONS = {
    "time to first token": "From when a request was due to its first response. A closed loop's request is due when it "
    "is sent, an open loop's at its arrival time.",
    "inter-token latency": "The time between two responses divided by the tokens of the second, counted once for each of "
    "these tokens. Tokens of the first response have none.",
    "end to end": "From when a request was due to its last token.",
    "tokens per second": "Output tokens of requests that succeeded, over the wall time of the variant's slices.",
    "goodput": "Requests that succeeded within every limit of the SLO, per second and as a share of all requests. The "
    "limit on inter-token latency applies to a request's mean.",
    "acceptance rate": "Accepted / proposed drafts. Drafts after a rejection are never accepted, so rates fall with the "
    "position.",
    "mean acceptance length": "Tokens emitted per target forward pass, prefill aside.",
    "a round's time": "Times that the coordinator reported, summed over all requests, per target forward pass. queue: waiting "
    "for a device; draft, target: computing, in batches with other requests; rpc: messages and event loops; coordinator: "
    "the rest of its total (admission, tokenization, detokenization); client: what the client measured beyond that total.",
}


STYLE = """
:root { color-scheme: light dark; }
body { max-width: 78em; margin: 0 auto; padding: 1em; font: 15px/1.5 system-ui, sans-serif; }
summary { font-size: 1.3em; font-weight: bold; cursor: pointer; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26em), 1fr)); gap: 1.5em; }
figure { margin: 0; min-width: 0; }
svg { width: 100%; height: auto; }
@media (prefers-color-scheme: dark) { svg, .legend i { filter: invert(1) hue-rotate(180deg); } }
.legend span { display: inline-block; margin-right: 1.2em; }
.legend i { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.4em; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: 0.2em 0.6em; text-align: right; white-space: nowrap; border-bottom: 1px solid #8884; }
th:first-child, td:first-child, .overview :is(th, td):nth-child(2) { text-align: left; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 0.2em 1.2em; }
dd { margin: 0; overflow-wrap: anywhere; }
"""


def render(report: Report) -> str:
    names = list(report.points[0].metrics)
    body = [
        _header(report),
        _overview(report),
        _failures(report),
        _sweep(report, names) if report.is_sweep else "",
        *(_point(point, report.slo, is_open=not report.is_sweep) for point in report.points),
        _section("How it was measured", _definition_list(report.settings)),
        _section("What the metrics mean", _definition_list(DEFINITIONS)),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Paceline load test, {_when(report.began)}</title><style>{STYLE}</style></head>"
        f"<body><main>{''.join(body)}</main></body></html>\n"
    )


def _header(report: Report) -> str:
    about = " · ".join(f"{escape(name)} {escape(value)}" for name, value in report.deployment.items())
    return f"<header><h1>Paceline load test</h1><p>{_when(report.began)}</p><p>{about}</p></header>"


def _when(began: str) -> str:
    moment = datetime.fromisoformat(began)
    zone = f" {moment.tzinfo}" if moment.tzinfo is not None else ""
    return f"{moment.day} {moment:%B %Y, %H:%M}{zone}"


def _overview(report: Report) -> str:
    headings = ["load", "variant", "requests", "tokens/s", "ttft p50", "ttft p99", "itl p50", "itl p99", "e2e p50"]
    headings += ["accepted", "length"] + (["goodput"] if report.slo is not None else [])
    rows = []
    for point in report.points:
        for name, metrics in point.metrics.items():
            cells = [escape(point.load.label), escape(name), _requests(metrics)]
            cells.append(number(metrics.tokens_per_second))
            for spread, share in (
                (metrics.ttft_ms, "p50"), (metrics.ttft_ms, "p99"), (metrics.itl_ms, "p50"), (metrics.itl_ms, "p99"),
                (metrics.e2e_ms, "p50"),
            ):  # fmt: skip
                cells.append(of_spread(spread, share))
            cells += [percent(metrics.acceptance_rate), number(metrics.mean_acceptance_length)]
            good = metrics.goodput
            cells += [] if good is None else [f"{number(good.requests_per_second)} ({percent(good.share)})"]
            rows.append(f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    slo = (
        f" Goodput: requests per second, and their share, under {escape(report.slo.label)} ms."
        if report.slo is not None
        else ""
    )
    table = f'<table class="overview"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    note = f"<p>Times in milliseconds; length: mean acceptance length, in tokens; p99 needs {VALUES_FOR_P99} values.{slo}</p>"
    return _section("At a glance", f'<div class="scroll">{table}</div>{note}')


def _requests(metrics: Metrics) -> str:
    failed = metrics.requests - metrics.succeeded
    return str(metrics.requests) + (f" ({failed} failed)" if failed else "")


def _failures(report: Report) -> str:
    said = first_failures(report)
    if not said:
        return ""
    lines = "".join(f"<li>{escape(line)}</li>" for line in said)
    return _section("Failures", f"<p>The first message of each status code.</p><ul>{lines}</ul>")


def _sweep(report: Report, names: list[str]) -> str:
    """Plots latency against throughput: a line per variant, a dot per load."""
    drawn = []
    for title, field in (
        ("time to first token", "ttft_ms"),
        ("inter-token latency", "itl_ms"),
        ("end to end", "e2e_ms"),
    ):
        series = []
        for name in names:
            dots = [(point.load.short_label, point.metrics[name]) for point in report.points]
            measured = [
                (label, (metrics.tokens_per_second, spread.p90))
                for label, metrics in dots
                if (spread := getattr(metrics, field)) is not None
            ]
            series.append(Series([dot for _, dot in measured], [label for label, _ in measured]))
        axes = Axes(f"{title}, p90", "output tokens per second", "milliseconds")
        drawn.append(_figure(axes.title, charts.line_chart(axes, series)))
    return _section("Throughput against latency", charts.legend(names) + _charts(drawn))


def _point(point: Point, slo: Slo | None, is_open: bool) -> str:
    names = list(point.metrics)
    drawn = [
        _cdf(title, unit, [values(run.records) for run in point.runs.values()]) for title, values, unit in LATENCIES
    ]
    drawn.append(_acceptance(point))
    bars = charts.stacked_bars(
        "a round's time", "ms", {name: metrics.round_ms for name, metrics in point.metrics.items()}
    )
    drawn.append(
        _figure("a round's time: ms per target forward pass", charts.legend(list(PARTS), charts.PART_COLORS) + bars)
    )
    return (
        f'<details class="point"{" open" if is_open else ""}><summary>{escape(point.load.label)}</summary>'
        f"{charts.legend(names)}{_charts(drawn)}{_table(point, slo)}</details>"
    )


def _cdf(title: str, unit: str, values: list[Values]) -> str:
    shares = range(LAST_PERCENTILE + 1)
    series = [
        Series(list(zip(np.percentile(of, shares).tolist(), map(float, shares), strict=True)) if len(of) else [])
        for of in values
    ]
    axes = Axes(f"{title}, to p{LAST_PERCENTILE}", "milliseconds", f"% of {unit}", y_top=100)
    return _figure(axes.title, charts.line_chart(axes, series))


def _acceptance(point: Point) -> str:
    series = [
        Series(
            [(float(position), 100 * rate) for position, rate in enumerate(metrics.acceptance_per_position, 1)],
            [""] * len(metrics.acceptance_per_position),
        )
        for metrics in point.metrics.values()
    ]
    longest = max(len(metrics.acceptance_per_position) for metrics in point.metrics.values())
    positions = list(range(1, max(longest, 2) + 1))
    axes = Axes("acceptance rate by draft position", "position in the round", "% accepted", 100, positions)
    return _figure(axes.title, charts.line_chart(axes, series))


def _table(point: Point, slo: Slo | None) -> str:
    head = "<th></th>" + "".join(f"<th>{escape(name)}</th>" for name in point.metrics)
    bodies = []
    for group in groups_of(point, slo):
        rows = f'<tr><th colspan="{len(point.metrics) + 1}">{escape(group.heading)}</th></tr>'
        for label, cells in group.rows:
            rows += f"<tr><td>{escape(label)}</td>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        bodies.append(f"<tbody>{rows}</tbody>")
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead>{"".join(bodies)}</table></div>'


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>"


def _figure(title: str, content: str) -> str:
    return f"<figure><h3>{escape(title)}</h3>{content}</figure>"


def _charts(drawn: list[str]) -> str:
    return f'<div class="charts">{"".join(drawn)}</div>'


def _definition_list(entries: dict[str, str]) -> str:
    return (
        "<dl>" + "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in entries.items()) + "</dl>"
    )
