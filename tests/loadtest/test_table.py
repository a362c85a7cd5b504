"""Tables stay readable in a narrow terminal, and name what they leave out."""

import functools
import io

import pytest
from rich.console import Console

from paceline.loadtest.metrics import Slo
from paceline.loadtest.report import Point, Report, print_report
from paceline.loadtest.workload import ClosedLoop
from tests.loadtest.test_page import run_of

NAMES = ["off", "model:4", "model:8", "ngram", "hybrid:adaptive", "entropy", "hybrid"]


@functools.cache
def shown(width: int, *loads: int, count: int = 20) -> str:
    slo = Slo(ttft=60)
    points = [
        Point.of(ClosedLoop(load), {name: run_of(1.0 + place, count=count) for place, name in enumerate(NAMES)}, slo)
        for load in loads
    ]
    text = io.StringIO()
    print_report(Console(file=text, width=width), Report("2026-01-01", {}, {}, slo, points))
    return text.getvalue()


def headings(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.split() and set(line.split()) <= set(NAMES)]


@pytest.mark.parametrize("width", [46, 60, 80, 200])
def test_every_variant_is_shown_whole_at_any_width(width: int) -> None:
    text = shown(width, 4)
    assert "…" not in text
    assert [name for line in headings(text) for name in line] == NAMES
    assert max(len(line) for line in text.splitlines() if "goodput under" not in line) <= width


def test_where_there_is_room_all_variants_stand_side_by_side() -> None:
    assert headings(shown(200, 4)) == [NAMES]
    assert len(headings(shown(80, 4))) == 2


def test_a_sweep_is_whole_in_80_columns() -> None:
    text = shown(80, 1, 2)
    sweep = text[text.index("throughput against latency") :]
    assert "…" not in sweep
    assert sweep.count("hybrid:adaptive") == 2


def test_rows_say_of_what_they_are() -> None:
    text = shown(200, 4)
    assert "prompt tokens cached" in text
    assert "speed-up over off" in text


def test_a_99th_percentile_needs_a_hundred_values() -> None:
    few, many = shown(200, 4), shown(200, 4, count=100)
    lines = [line.split() for line in few.splitlines() if line.strip().startswith("p99")]
    # Twenty requests; four gapped tokens each give the inter-token latency eighty.
    assert [set(line[-len(NAMES) :]) for line in lines] == [{"–"}] * 3
    assert all("needs 100" in " ".join(line) for line in lines)
    assert "needs 100" not in many
