"""`paceline plan` says what the theory says."""

import csv
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest

from paceline.cli.measure import Measured
from paceline.cli.plan import advice, load_of
from paceline.cli.plots import BLOCKS, COLUMN_WIDTH, HEIGHT, terminal_plot, write_figures
from paceline.simulation import Deployment, Load, Outcome, deployments
from paceline.theory import Forecast
from tests.cli.conftest import Ran

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ALPHA, COST, WIRE, OPERATIONS_COST = 0.8, 0.1, 0.2, 0.05
COSTS = ("--alpha", ALPHA, "--draft-cost", COST, "--wire", WIRE, "--operations-cost", OPERATIONS_COST)


def summed(k: int) -> float:
    """Tokens per round, as the sum it is: the chance that each position is reached."""
    return sum(ALPHA**i for i in range(k + 1))


def test_table_holds_the_theory(paceline: Callable[..., Ran]) -> None:
    ran = paceline("plan", *COSTS, "--max-draft-tokens", 7)
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in ran.out.splitlines() if line[0:1] == "│"]
    assert [row[0] for row in cells] == [str(k) for k in range(8)]
    for k, row in enumerate(cells):
        speed = summed(k) / (COST * k + 1 + WIRE)
        work = (OPERATIONS_COST * k + k + 1) / summed(k)
        figures = f"{summed(k) - 1:.2f}", f"{summed(k):.2f}", f"{speed:.2f}x", f"{speed * (1 + WIRE):.2f}x"
        assert tuple(row[1:]) == (*figures, f"{work:.2f}x", f"{1 / summed(k):.2f}x")
    assert ran.code == 0


def test_json_holds_the_theory_and_the_best_k(paceline: Callable[..., Ran]) -> None:
    ran = paceline("plan", *COSTS, "--json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    speeds = [summed(k) / (COST * k + 1 + WIRE) for k in range(17)]
    assert [row["speedup"] for row in record["rounds"]] == pytest.approx(speeds)
    assert [row["tokens_per_round"] for row in record["rounds"]] == pytest.approx([summed(k) for k in range(17)])
    assert record["best_k"] == speeds.index(max(speeds))
    assert record["speedup"] == pytest.approx(max(speeds))
    assert record["speedup_over_k0"] == pytest.approx(max(speeds) / speeds[0])
    assert record["speculate"] is True
    assert record["measured"] is None


def test_operations_cost_as_much_as_time_unless_told(paceline: Callable[..., Ran]) -> None:
    record = json.loads(paceline("plan", "--alpha", 0.5, "--draft-cost", 0.3, "--json").out)
    assert record["operations_cost"] == 0.3
    assert record["wire"] == 0
    assert record["rounds"][1]["operations"] == pytest.approx((0.3 + 1 + 1) / 1.5)


def test_advice_names_the_best_k_and_its_speed(paceline: Callable[..., Ran]) -> None:
    said = " ".join(paceline("plan", "--alpha", 0.8, "--draft-cost", 0.1).out.split())
    assert "Speculate with 6 draft tokens per round: expect 2.47 times the speed of plain decoding." in said
    said = " ".join(paceline("plan", "--alpha", 0.3, "--draft-cost", 0.4).out.split())
    assert "Do not speculate" in said
    assert "less than 0.3 target forwards, and it takes 0.4" in said


@pytest.mark.parametrize("verify", [0.0, 0.1])
@pytest.mark.parametrize("wire", [0.0, 0.5])
@pytest.mark.parametrize("alpha", [0.2, 0.6, 0.9])
def test_speculation_pays_just_below_the_cost_that_advice_names(alpha: float, wire: float, verify: float) -> None:
    named = re.search(r"less than ([\d.]+) target", advice(Forecast(alpha, 2.0, wire, 2.0, 16, verify)))
    assert named is not None
    limit = float(named[1])
    assert Forecast(alpha, limit * 0.99, wire, 1.0, 16, verify).best > 0
    assert Forecast(alpha, limit * 1.01, wire, 1.0, 16, verify).best == 0


def test_plot_columns_are_as_high_as_the_values() -> None:
    values = [1.0, 1.5, 2.0, 0.25]
    rows = terminal_plot(values, best=2).plain.splitlines()[:HEIGHT]
    heights = []
    for k in range(len(values)):
        characters = [row[8 + COLUMN_WIDTH * k + 1] for row in rows]
        heights.append(sum(BLOCKS.index(c) / 8 for c in characters if c in BLOCKS))
    assert heights == pytest.approx([value / 2.0 * HEIGHT for value in values], abs=1 / 16)
    assert rows[0].startswith("  2.0x")
    assert [row for row in rows if row.startswith("  1.0x")]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--alpha", "1.01", "--draft-cost", "0.1"), "--alpha is 1.01; it must be in [0, 1]"),
        (("--alpha", "-0.1", "--draft-cost", "0.1"), "--alpha is -0.1; it must be in [0, 1]"),
        (("--alpha", "nan", "--draft-cost", "0.1"), "--alpha is nan; it must be in [0, 1]"),
        (("--alpha", "0.5", "--draft-cost", "-1"), "--draft-cost is -1.0; it must be a finite number >= 0"),
        (("--alpha", "0.5", "--draft-cost", "inf"), "--draft-cost is inf; it must be a finite number >= 0"),
        ((*COSTS, "--wire", "-0.5"), "--wire is -0.5; it must be a finite number >= 0"),
        ((*COSTS, "--operations-cost", "nan"), "--operations-cost is nan; it must be a finite number >= 0"),
        ((*COSTS, "--verify-cost", "-0.1"), "--verify-cost is -0.1; it must be a finite number >= 0"),
        ((*COSTS, "--verify-cost", "inf"), "--verify-cost is inf; it must be a finite number >= 0"),
        (
            (*COSTS, "--figures", "/no/such/folder"),
            "--figures is '/no/such/folder'; it must be a folder, or a new name",
        ),
        ((*COSTS, "--figures", "/etc/hostname"), "--figures is '/etc/hostname'; it must be a folder, or a new name"),
        ((*COSTS, "--max-draft-tokens", "0"), "--max-draft-tokens is 0; it must be in [1, 16]"),
        ((*COSTS, "--max-draft-tokens", "17"), "--max-draft-tokens is 17; it must be in [1, 16]"),
        ((*COSTS, "--png", "/no/such/folder/a.png"), "--png is '/no/such/folder/a.png'; it must be a file in a folder"),
        ((*COSTS, "--png", "/tmp/a.jpg"), "--png is '/tmp/a.jpg'; it must be a file whose name ends in .png"),
        ((*COSTS, "--prompts", "x"), "--prompts needs --measure"),
        (("--machines", "0"), "--machines is 0; it must be in [1, 64]"),
        (("--machines", "65"), "--machines is 65; it must be in [1, 64]"),
        (("--machines", "1", "--users", "0"), "--users is 0; it must be in [1, 10000]"),
        (("--machines", "1", "--users", "10001"), "--users is 10001; it must be in [1, 10000]"),
        ((*COSTS, "--users", "9"), "--users needs --machines"),
        (("--machines", "1", "--png", "/tmp/a.png"), "--png can't be combined with --machines"),
        (("--machines", "1", "--operations-cost", "0"), "--operations-cost can't be combined with --machines"),
        (("--draft-cost", "0.1"), "--alpha is missing; give a number in [0, 1], or --measure"),
        (("--alpha", "0.5"), "--draft-cost is missing; give a number >= 0, or --measure"),
        (("--measure", "--max-tokens", "7"), "--max-tokens is 7; it must be >= 8"),
        (("--measure", "--temperature", "nan"), "--temperature is nan; it must be a finite number >= 0"),
    ],
)
def test_bad_input_is_one_line_that_names_flag_and_range(
    paceline: Callable[..., Ran], flags: tuple[str, ...], said: str
) -> None:
    ran = paceline("plan", *flags)
    assert ran.code == 2
    assert ran.out == ""
    assert ran.err.startswith(f"error: {said}")
    assert ran.err.count("\n") == 1


def test_png_is_a_picture_of_the_plan(paceline: Callable[..., Ran], tmp_path: Path) -> None:
    contents = []
    for alpha in (0.5, 0.9):
        file = tmp_path / f"{alpha}.png"
        assert paceline("plan", "--alpha", alpha, "--draft-cost", 0.1, "--png", file).code == 0
        contents.append(file.read_bytes())
    for content in contents:
        assert content.startswith(PNG_SIGNATURE)
        assert content.endswith(b"IEND\xaeB`\x82")
    assert contents[0] != contents[1]


def test_without_a_picture_matplotlib_stays_unimported() -> None:
    program = (
        "import sys; from paceline.cli import app; app(['plan', '--alpha', '0.5', '--draft-cost', '0.1'], "
        "standalone_mode=False); assert 'matplotlib' not in sys.modules, 'imported'; print('checked')"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.stdout.endswith("checked\n"), ran.stderr


def said_by(paceline: Callable[..., Ran], *flags: object) -> str:
    ran = paceline("plan", *flags)
    assert ran.code == 0, ran.err
    return " ".join(ran.out.split())


def test_drafted_rows_that_cost_time_lower_speed_and_k(paceline: Callable[..., Ran]) -> None:
    free = json.loads(paceline("plan", *COSTS, "--json").out)
    record = json.loads(paceline("plan", *COSTS, "--verify-cost", 0.1, "--json").out)
    speeds = [summed(k) / ((COST + 0.1) * k + 1 + WIRE) for k in range(17)]
    assert [row["speedup"] for row in record["rounds"]] == pytest.approx(speeds)
    assert record["verify_cost"] == 0.1
    assert record["best_k"] == speeds.index(max(speeds)) < free["best_k"]
    # What is counted and not timed stays.
    for name in ("tokens_per_round", "operations", "target_reads"):
        assert [row[name] for row in record["rounds"]] == [row[name] for row in free["rounds"]]
    assert free["verify_cost"] == 0


def test_no_row_may_cost_more_than_its_draft_saves(paceline: Callable[..., Ran]) -> None:
    said = said_by(paceline, "--alpha", 0.3, "--draft-cost", 0, "--verify-cost", 0.31)
    assert "Do not speculate: with 30% of the drafts accepted, it never pays, however fast the draft model is." in said
    assert "Speculate with 1 draft token " in said_by(
        paceline, "--alpha", 0.3, "--draft-cost", 0, "--verify-cost", 0.29
    )


@pytest.mark.parametrize(
    ("alpha", "cost", "said", "unsaid"),
    [
        (
            0.91,
            0.1,
            "More than 90% of the drafts are accepted. Draft many tokens, and try a smaller draft",
            "Less than",
        ),
        (0.91, 0.95, "More than 90% of the drafts are accepted. Try a smaller draft", "Draft many"),
        (0.9, 0.1, "Speculate with", "of the drafts are accepted"),
        (0.5, 0.1, "Speculate with", "of the drafts are accepted"),
        (0.49, 0.1, "Less than 50% of the drafts are accepted: the draft model agrees too seldom", "More than"),
        (0.0, 0.1, "paceline distill", "More than"),
    ],
)
def test_a_draft_that_is_too_good_or_too_bad_is_said_to_be_so(
    paceline: Callable[..., Ran], alpha: float, cost: float, said: str, unsaid: str
) -> None:
    text = said_by(paceline, "--alpha", alpha, "--draft-cost", cost)
    assert said in text
    assert unsaid not in text


def test_the_oracle_is_compared_with_the_best_k(paceline: Callable[..., Ran]) -> None:
    # 5 tokens in 4 draft steps and a forward, against 3.951424 in 6 and one.
    oracle, best = 5 / 1.4, 3.951424 / 1.6
    record = json.loads(paceline("plan", "--alpha", 0.8, "--draft-cost", 0.1, "--json").out)
    assert record["oracle"] == pytest.approx({"tokens_per_round": 5.0, "speedup": oracle, "over_best_k": oracle / best})
    said = said_by(paceline, "--alpha", 0.8, "--draft-cost", 0.1)
    assert "would be 45% faster than k = 6: 3.57x." in said


def test_certain_drafts_that_cost_nothing_have_no_bound(paceline: Callable[..., Ran]) -> None:
    ran = paceline("plan", "--alpha", 1, "--draft-cost", 0, "--json")
    # No number of JSON is infinite.
    record = json.loads(ran.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert record["oracle"] == {"tokens_per_round": None, "speedup": None, "over_best_k": None}
    assert (record["accepted_per_round"], record["target_reads"]) == (16, pytest.approx(1 / 17))
    assert "more of them are always faster" in said_by(paceline, "--alpha", 1, "--draft-cost", 0)


def table_of(file: Path) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as opened:
        return list(csv.DictReader(opened))


@pytest.fixture(scope="module")
def papers_figures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """At `--draft-cost 0`, in a folder that is made for them."""
    folder = tmp_path_factory.mktemp("figures") / "new"
    write_figures(folder, Forecast(0.8, 0.0, 0.0, 0.0, 16))
    return folder


@pytest.mark.parametrize("name", ["figure2", "figure3", "figure4"])
def test_each_figure_is_a_picture_in_two_forms(papers_figures: Path, name: str) -> None:
    png, svg = ((papers_figures / f"{name}.{form}").read_bytes() for form in ("png", "svg"))
    assert png.startswith(PNG_SIGNATURE)
    assert b"<svg" in svg
    assert svg.endswith(b"</svg>\n")
    curves = {row["curve"] for row in table_of(papers_figures / f"{name}.csv")}
    # A dashed line and a place in the legend for each.
    assert svg.count(b'<g id="line2d_') > 2 * len(curves)
    assert len(curves) >= 4


def test_the_numbers_of_figures_2_and_4_are_table_1s(papers_figures: Path) -> None:
    tokens = {(row["alpha"], row["curve"]): row for row in table_of(papers_figures / "figure2.csv")}
    both = {(row["alpha"], row["curve"]): row for row in table_of(papers_figures / "figure4.csv")}
    for alpha, gamma, operations, speed in [(0.7, 3, 1.58, 2.53), (0.8, 5, 1.63, 3.69), (0.9, 10, 1.60, 6.86)]:
        at = str(alpha), f"gamma = {gamma}"
        assert float(tokens[at]["tokens in a run of the target"]) == pytest.approx(speed, abs=0.0051)
        assert float(both[at]["speed"]) == pytest.approx(speed, abs=0.0051)
        assert float(both[at]["arithmetic"]) == pytest.approx(operations, abs=0.0051)


def test_the_numbers_of_figure_3_are_the_fastest_gammas(papers_figures: Path) -> None:
    rows = {(row["alpha"], row["curve"]): row for row in table_of(papers_figures / "figure3.csv")}
    for alpha, c in [(0.5, 0.1), (0.8, 0.1), (0.8, 0.02), (0.99, 0.01)]:
        speeds = [(1 - alpha ** (gamma + 1)) / (1 - alpha) / (gamma * c + 1) for gamma in range(150)]
        found = rows[str(alpha), f"c = {c}"]
        assert float(found["the gamma that is fastest"]) == speeds.index(max(speeds)) < 149


def test_figures_have_the_costs_that_were_given(
    paceline: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The numbers alone: drawing takes a second.
    monkeypatch.setattr("paceline.cli.plots._draw", lambda shown, alpha: Mock())
    ran = paceline("plan", *COSTS, "--verify-cost", 0.05, "--figures", tmp_path)
    assert ran.code == 0, ran.err
    rows = {(row["alpha"], row["curve"]): row for row in table_of(tmp_path / "figure4.csv")}
    at = rows[str(ALPHA), "gamma = 5"]
    assert float(at["speed"]) == pytest.approx(summed(5) / ((COST + 0.05) * 5 + 1 + WIRE), rel=1e-5)
    assert float(at["arithmetic"]) == pytest.approx((OPERATIONS_COST * 5 + 6) / summed(5), rel=1e-5)


def test_a_folder_that_cannot_be_written_is_named(paceline: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "figure2.csv").mkdir()
    ran = paceline("plan", *COSTS, "--figures", tmp_path)
    assert ran.code == 1
    assert ran.err.startswith(f"error: --figures {tmp_path}: ")


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Load]:
    """Replaces the simulation; returns what it is asked for. The speed is 100 times the drafts, and 50 without."""
    asked = []

    def simulate(deployment: Deployment, load: Load) -> Outcome:
        asked.append(load)
        return Outcome(100 * deployment.num_drafts or 50, 41, 5.4, 99.6)

    monkeypatch.setattr("paceline.cli.plan.simulate", simulate)
    return asked


def test_machines_are_compared_in_a_table(paceline: Callable[..., Ran], loads: list[Load]) -> None:
    ran = paceline("plan", "--machines", 3)
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in ran.out.splitlines() if line[0:1] == "│"]
    assert cells == [
        ["3 targets, no drafts", "50", "41", "5", "100"],
        ["3 pairs", "300", "41", "5", "100"],
        ["2 targets, 1 draft", "100", "41", "5", "100"],
        ["1 target, 2 drafts", "200", "41", "5", "100"],
    ]
    said = " ".join(ran.out.split())
    assert "Best: 3 pairs, 6.00 times the speed without drafts." in said
    # The built-in costs, and where they are from.
    assert set(loads) == {Load(300)}
    assert "alpha 0.8, k 4; target forward 2.97 ms, draft step 1.16" in said
    assert "Llama 3.2 3B and 1B on an H100" in said
    assert ran.code == 0, ran.err


def test_machines_have_the_costs_that_were_given(paceline: Callable[..., Ran], loads: list[Load]) -> None:
    flags = ("--alpha", 0.6, "--draft-cost", 0.1, "--wire", 0.4, "--verify-cost", 0.05, "--max-draft-tokens", 2)
    ran = paceline("plan", "--machines", 2, "--users", 7, *flags, "--json")
    load, record = loads[0], json.loads(ran.out)
    assert (load.num_users, load.alpha, load.k) == (7, 0.6, 2)
    forward_ms = Load(1).target.forward
    assert load.target.forward == pytest.approx(forward_ms)
    assert load.target.token == pytest.approx(0.05 * forward_ms)
    assert load.draft.forward == pytest.approx(0.1 * forward_ms)
    assert 2 * load.wire_ms == pytest.approx(0.4 * forward_ms)
    assert [row["deployment"] for row in record["deployments"]] == [str(each) for each in deployments(2)]
    assert (record["best"], record["alpha"], record["deployments"][1]["speed"]) == ("2 pairs", 0.6, 200)


def test_measured_costs_are_multiples_of_the_measured_forward() -> None:
    found = Measured(4, 0.7, 0.2, 0.3, 1.4, 1.5, target_ms=29.7, accepted=7, decided=10)
    load = load_of(5, found.alpha, found.draft_cost, found.wire, found.row_cost, None, found)
    assert (load.target.forward, load.target.token, load.draft.forward) == pytest.approx((29.7, 2.97, 5.94))
    assert (load.alpha, 2 * load.wire_ms) == pytest.approx((0.7, 8.91))
    # Ten times the built-in forward.
    assert load.target.cached == pytest.approx(10 * Load(1).target.cached)


def test_a_simulation_runs_in_the_command(paceline: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.simulation.MEASURED", 20)
    record = json.loads(paceline("plan", "--machines", 1, "--users", 1, "--alpha", 1, "--json").out)
    plain, pair = record["deployments"]
    assert pair["speed"] > 1.5 * plain["speed"] > 0
