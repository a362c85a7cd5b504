"""Figures are those that a hand computes."""

import json

import pytest

from paceline.errors import InvalidArgument
from paceline.loadtest.metrics import PARTS, Goodput, Run, Slo, itls_ms, metrics_of, parse_slo, spread
from paceline.loadtest.report import Point, Report, as_record
from paceline.loadtest.workload import ClosedLoop
from tests.loadtest.conftest import failed, make_finish, make_record

# First token after 100 ms; then 4 tokens in 20 ms, and 1 in 10.
RECORD = make_record((100.0, 1), (120.0, 4), (130.0, 1))


def test_a_token_counts_its_part_of_the_time_since_the_last_response() -> None:
    assert RECORD.ttft_ms == 100.0
    assert RECORD.e2e_ms == 130.0
    assert RECORD.tokens == 6
    assert itls_ms([RECORD]).tolist() == [5.0, 5.0, 5.0, 5.0, 10.0]
    assert RECORD.mean_itl_ms == pytest.approx(6.0)


def test_without_a_second_response_there_is_no_inter_token_latency() -> None:
    at_once = make_record((100.0, 8))
    assert at_once.mean_itl_ms is None
    assert metrics_of(Run([at_once], 1.0), None).itl_ms is None


def test_percentiles_lie_between_values() -> None:
    found = spread(itls_ms([RECORD]))
    assert found is not None
    assert (found.mean, found.p50) == (6.0, 5.0)
    # Five values: the 90th percentile is 0.6 of the way from the fourth to the fifth.
    assert found.p90 == pytest.approx(8.0)
    assert found.p99 == pytest.approx(9.8)


def test_failed_requests_count_as_such_and_their_latencies_do_not() -> None:
    run = Run([RECORD, failed("UNAVAILABLE"), failed("RESOURCE_EXHAUSTED"), failed("UNAVAILABLE")], wall_s=2.0)
    found = metrics_of(run, None)
    assert (found.requests, found.succeeded) == (4, 1)
    assert found.failures == {"UNAVAILABLE": 2, "RESOURCE_EXHAUSTED": 1}
    assert (found.requests_per_second, found.tokens_per_second) == (0.5, 3.0)
    assert found.ttft_ms is not None
    assert found.ttft_ms.p99 == 100.0
    assert (found.prompt_tokens, found.cached_prompt_tokens, found.output_tokens) == (10, 4, 6)


@pytest.mark.parametrize(
    ("slo", "met"),
    [
        (Slo(ttft=100), True), (Slo(ttft=99), False), (Slo(itl=6), True), (Slo(itl=5.9), False),
        (Slo(e2e=130), True), (Slo(e2e=129), False), (Slo(ttft=100, itl=5), False), (Slo(), True),
    ],
)  # fmt: skip
def test_goodput_counts_requests_within_every_limit(slo: Slo, met: bool) -> None:
    run = Run([RECORD, failed("UNAVAILABLE")], wall_s=4.0)
    assert metrics_of(run, slo).goodput == Goodput(0.25 * met, 0.5 * met)


def test_an_slo_reads_as_it_is_typed() -> None:
    assert parse_slo("ttft=500,itl=50") == Slo(ttft=500, itl=50)
    assert parse_slo("e2e=1e3").label == "e2e=1000"


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=x", "ttft=0", "itl=-1", "itl=nan", "e2e=inf", "p99=3", "itl=1,itl=2"]
)
def test_a_bad_slo_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--slo is .*milliseconds > 0"):
        parse_slo(text)


def test_acceptance_is_summed_before_it_is_divided() -> None:
    long = make_finish(rounds=9, proposed=(9, 9), accepted=(6, 3), length=2.0)
    short = make_finish(rounds=1, proposed=(1,), accepted=(0,), length=1.0)
    found = metrics_of(Run([make_record((1.0, 1), finish=long), make_record((1.0, 1), finish=short)], 1.0), None)
    assert found.acceptance_per_position == [6 / 10, 3 / 9]
    assert found.acceptance_rate == 9 / 19
    assert found.mean_acceptance_length == pytest.approx(1.9)


def test_without_drafts_there_is_no_acceptance() -> None:
    found = metrics_of(Run([make_record((1.0, 1), finish=make_finish(rounds=0))], 1.0), None)
    assert found.acceptance_rate is found.mean_acceptance_length is None
    assert found.acceptance_per_position == []


def test_the_parts_of_a_round_make_up_what_the_client_saw() -> None:
    finish = make_finish(rounds=3, total_ms=120.0, queued_ms=8.0, draft_ms=20.0, target_ms=60.0, rpc_ms=12.0)
    found = metrics_of(Run([make_record((50.0, 1), (132.0, 7), finish=finish)], 1.0), None)
    # Four forward passes: the prompt's and three rounds.
    parts = {"queue": 2.0, "draft": 5.0, "target": 15.0, "rpc": 3.0, "coordinator": 5.0, "client": 3.0}
    assert found.round_ms == parts
    assert tuple(parts) == PARTS
    assert sum(parts.values()) * 4 == 132.0


def test_a_run_of_failures_has_no_figures_and_no_division_by_zero() -> None:
    found = metrics_of(Run([failed("INTERNAL")], wall_s=0.0), Slo(ttft=1))
    assert (found.tokens_per_second, found.goodput) == (0.0, Goodput(0.0, 0.0))
    assert found.ttft_ms is found.itl_ms is found.e2e_ms is None
    assert found.round_ms == {}


def test_json_holds_figures_and_every_request() -> None:
    runs = {"off": Run([RECORD, failed("UNAVAILABLE", "gone", index=1)], 2.0)}
    point = Point.of(ClosedLoop(4), runs, Slo(ttft=500))
    report = Report("now", {"target": "a model"}, {"seed": "0"}, Slo(ttft=500), [point])
    record = json.loads(json.dumps(as_record(report)))
    assert record["slo_ms"] == {"ttft": 500, "itl": None, "e2e": None}
    (found,) = record["points"]
    assert found["load"] == {"concurrency": 4}
    (variant,) = found["variants"]
    assert variant["name"] == "off"
    assert variant["tokens_per_second"] == 3.0
    assert [each["index"] for each in variant["records"]] == [0, 1]
    assert variant["records"][0]["itl_ms"] == pytest.approx(6.0)
    assert variant["records"][1]["failure"] == {"status": "UNAVAILABLE", "message": "gone"}
