"""The page is whole, well-formed, and needs nothing from outside."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest

from paceline.loadtest.charts import PART_COLORS, VARIANT_COLORS, Axes, Series, line_chart, stacked_bars
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
        self.links: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links |= {value or "" for name, value in attrs if name in ("src", "href", "xlink:href")}

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
    assert not found.attributes & {"onclick", "onload"}
    # The charts' own marks and clips.
    assert all(link.startswith("#") for link in [*found.links, *re.findall(r"url\((.*?)\)", page)])
    assert "@import" not in page
    assert EVIL not in page


def test_a_single_load_has_its_figures_and_plots_and_no_sweep() -> None:
    page = render(report_of(ClosedLoop(4)))
    assert "Throughput against latency" not in page
    assert "Failures" not in page
    # Three latencies, acceptance, and a round's time.
    assert page.count("<svg") == 5
    for figure in ("goodput", "at position 2", "75%", "mean acceptance length", "queue", "rpc"):
        assert figure in page


def test_a_sweep_has_a_dot_for_each_load_and_variant() -> None:
    page = render(report_of(ClosedLoop(1), ClosedLoop(2), ClosedLoop(8)))
    section = page[page.index("Throughput against latency") :]
    section = section[: section.index("</section>")]
    assert section.count("<svg") == 3
    # One of each variant, in each chart.
    assert section.count(">8</text>") == 3 * 2


def test_the_time_is_told_as_people_write_it() -> None:
    report = report_of(ClosedLoop(4))
    page = render(Report("2026-11-23T04:05:00+01:00", report.deployment, report.settings, report.slo, report.points))
    assert "23 November 2026, 04:05 UTC+01:00" in page
    assert "2026-11-23T" not in page


def test_positions_begin_at_one() -> None:
    page = render(report_of(ClosedLoop(4)))
    figure = page[page.index("acceptance rate by draft position") :]
    (x_axis,) = re.findall(r'<g id="matplotlib.axis_1">(.*?)position in the round', figure, re.DOTALL)[:1]
    assert re.findall(r">(\d+)</text>", x_axis) == ["1", "2"]


def test_a_99th_percentile_of_few_requests_is_not_told() -> None:
    page = render(report_of(ClosedLoop(4)))
    assert "p99 needs 100 values" in page
    overview = page[page.index("At a glance") : page.index("</table>")]
    column = re.findall("<th>(.*?)</th>", overview).index("ttft p99")
    rows = [re.findall("<td>(.*?)</td>", row) for row in re.findall("<tr>(<td>.*?)</tr>", overview)]
    assert [row[column] for row in rows] == ["–", "–"]


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


def paths_of(svg: str, color: str) -> list[list[tuple[float, float]]]:
    """Returns the corners of all filled or drawn paths of a color."""
    ElementTree.fromstring(svg)
    found = re.findall(rf'<path d="([^"]*)"[^>]*style="(?:fill|[^"]*stroke): {color}', svg)
    return [[(float(x), float(y)) for x, y in re.findall(r"[ML] (\S+) (\S+)", path)] for path in found]


def test_a_line_goes_where_its_points_are() -> None:
    drawn = line_chart(Axes("t", "x", "y"), [Series([(0, 0), (5, 1), (10, 5)])])
    (((left, bottom), middle, (right, top)),) = paths_of(drawn, VARIANT_COLORS[0])
    assert middle == pytest.approx(((left + right) / 2, bottom - (bottom - top) / 5), abs=0.01)
    assert right > left
    assert bottom > top


def test_the_parts_of_a_bar_lie_side_by_side_and_to_scale() -> None:
    drawn = stacked_bars("t", "ms", {"a": {"p": 1.0, "q": 3.0}, "b": {"p": 2.0, "q": 0.0}})
    (p, half), (q, nothing) = (
        [(path[0][0], path[1][0]) for path in paths_of(drawn, PART_COLORS[part])] for part in (0, 1)
    )
    assert q[0] == pytest.approx(p[1], abs=0.01)
    assert q[1] - q[0] == pytest.approx(3 * (p[1] - p[0]), abs=0.01)
    assert half[1] - half[0] == pytest.approx(2 * (p[1] - p[0]), abs=0.01)
    assert nothing[1] == nothing[0]


def test_a_variant_may_have_any_name() -> None:
    drawn = stacked_bars("t", "ms", {"$k$": {"p": 1.0}, "_<&>": {"p": 1.0}})
    texts = [text.text for text in ElementTree.fromstring(drawn).iter("{http://www.w3.org/2000/svg}text")]
    assert {"$k$", "_<&>"} <= set(texts)
