"""The page is whole, well-formed, and needs nothing from outside."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from paceline.loadtest.charts import Axes, Series, line_chart, stacked_bars, ticks
from paceline.loadtest.metrics import Run, Slo
from paceline.loadtest.page import render
from paceline.loadtest.report import Point, Report
from paceline.loadtest.workload import ClosedLoop, Load, OpenLoop
from tests.loadtest.conftest import failed, make_finish, make_record

EVIL = "<script>alert('&')</script>"


class Checker(HTMLParser):
    """Fails if a tag is closed that is not open; collects tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def run_of(speed: float, status: str | None = None, count: int = 20) -> Run:
    finish = make_finish(rounds=4, proposed=(4, 4), accepted=(3, 1), length=2.0, total_ms=90.0, target_ms=70.0)
    good = [make_record((50.0 + i, 1), ((100.0 + i) / speed + 50, 4), finish=finish, index=i) for i in range(count)]
    return Run([*good, failed(status, EVIL)] if status else good, wall_s=2.0)


def report_of(*loads: Load, status: str | None = None) -> Report:
    slo = Slo(ttft=60)
    points = [Point.of(load, {"off": run_of(1.0), EVIL: run_of(2.0, status)}, slo) for load in loads]
    return Report("2026-01-01", {"target": EVIL}, {"addresses": EVIL}, slo, points)


def check(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    for svg in re.findall(r"<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(svg)
    return checker


@pytest.mark.parametrize(
    "report",
    [
        report_of(ClosedLoop(4)),
        report_of(ClosedLoop(1), ClosedLoop(2), ClosedLoop(4), status="UNAVAILABLE"),
        report_of(OpenLoop(0.5), OpenLoop(2)),
    ],
    ids=["comparison", "sweep with failures", "open loop"],
)
def test_the_page_is_well_formed_and_self_contained(report: Report) -> None:
    page = render(report)
    found = check(page)
    assert not found.tags & {"script", "link", "img", "iframe", "object"}
    assert not found.attributes & {"src", "href", "onclick", "onload"}
    assert "url(" not in page
    assert "@import" not in page
    assert EVIL not in page
    assert "prefers-color-scheme: dark" in page


def test_a_single_load_has_its_figures_and_plots_and_no_sweep() -> None:
    page = render(report_of(ClosedLoop(4)))
    assert "Throughput against latency" not in page
    assert "Failures" not in page
    # Three latencies, acceptance, and a round's time.
    assert page.count("<svg") == 5
    for figure in ("goodput", "at position 2", "75%", "mean acceptance length", "queue", "wire"):
        assert figure in page


def test_a_sweep_has_a_dot_for_each_load_and_variant() -> None:
    page = render(report_of(ClosedLoop(1), ClosedLoop(2), ClosedLoop(8)))
    section = page[page.index("Throughput against latency") :]
    section = section[: section.index("</section>")]
    assert section.count("<svg") == 3
    assert section.count("<circle") == 3 * 3 * 2
    assert section.count(">8</text>") >= 3 * 2


def test_the_time_is_told_as_people_write_it() -> None:
    report = report_of(ClosedLoop(4))
    page = render(Report("2026-11-23T04:05:00+01:00", report.deployment, report.settings, report.slo, report.points))
    assert "23 November 2026, 04:05 UTC+01:00" in page
    assert "2026-11-23T" not in page


def test_positions_begin_at_one_and_phases_have_colours_of_their_own() -> None:
    page = render(report_of(ClosedLoop(4)))
    figure = page[page.index("acceptance rate by draft position") :]
    figure = figure[: figure.index("</figure>")]
    assert re.findall(r'y="253.0" text-anchor="middle">(\w+)<', figure) == ["1", "2"]
    bars = set(re.findall(r'class="bar (\w+)"', page))
    assert bars == {f"phase{number}" for number in range(6)}
    assert all(page.count(f".{name} {{ color: ") == 1 and page.count(f"--{name}: #") == 2 for name in bars)


def test_a_99th_percentile_of_few_requests_is_not_told() -> None:
    page = render(report_of(ClosedLoop(4)))
    assert "p99 needs 100 values" in page
    overview = page[page.index("At a glance") : page.index("</table>")]
    assert overview.count('data-label="ttft p99">–<') == 2


def test_failures_are_told_by_code_and_by_their_first_message() -> None:
    page = render(report_of(ClosedLoop(4), status="RESOURCE_EXHAUSTED"))
    assert "RESOURCE_EXHAUSTED" in page
    assert "&lt;script&gt;" in page
    assert "(1 failed)" in page


def test_a_page_of_nothing_but_failures_can_be_drawn() -> None:
    point = Point.of(ClosedLoop(1), {"default": Run([failed("UNAVAILABLE")], 1.0)}, None)
    page = render(Report("2026-01-01", {}, {}, None, [point]))
    check(page)
    assert page.count("nothing was measured") == 5


@pytest.mark.parametrize("top", [0.003, 0.7, 1.0, 3.0, 9.99, 10.0, 99.0, 1234.5, 1e6])
def test_ticks_are_few_round_and_reach_the_top(top: float) -> None:
    found = ticks(top)
    assert found[0] == 0
    assert found[-2] < top <= found[-1] * (1 + 1e-9)
    assert 4 <= len(found) <= 12
    assert f"{found[1]:e}"[0] in "125"


def test_a_line_goes_where_its_points_are() -> None:
    drawn = line_chart(Axes("t", "x", "y"), [Series("s", [(0, 0), (5, 1), (10, 5)], 0)])
    (line,) = ElementTree.fromstring(drawn).iter("polyline")
    placed = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    # The axes' corner, and the opposite one: 10 and 5 are both the last tick. Half of 364 and a fifth of 222 between.
    assert placed == [(56.0, 236.0), (238.0, 191.6), (420.0, 14.0)]


def test_the_parts_of_a_bar_lie_side_by_side_and_to_scale() -> None:
    svg = ElementTree.fromstring(stacked_bars("t", "ms", {"a": {"p": 1.0, "q": 3.0}, "b": {"p": 2.0, "q": 0.0}}))
    p, q, half, nothing = ((float(bar.attrib["x"]), float(bar.attrib["width"])) for bar in svg.iter("rect"))
    assert q[0] == pytest.approx(p[0] + p[1], abs=0.11)
    assert q[1] == pytest.approx(3 * p[1], abs=0.31)
    assert half[1] == pytest.approx(2 * p[1], abs=0.21)
    assert nothing[1] == 0
