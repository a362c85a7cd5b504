"""`paceline plan` says what the theory says."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli.plan import Plan, advice
from paceline.cli.plot import BLOCKS, COLUMN_WIDTH, HEIGHT, terminal_plot
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
        figures = (f"{summed(k):.2f}", f"{speed:.2f}x", f"{speed * (1 + WIRE):.2f}x", f"{work:.2f}x")
        assert tuple(row[1:]) == figures
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
    assert "Speculate with 6 draft tokens a round: expect 2.47 times the speed of plain decoding." in said
    said = " ".join(paceline("plan", "--alpha", 0.3, "--draft-cost", 0.4).out.split())
    assert "Do not speculate" in said
    assert "less than 0.3 target forwards, and it takes 0.4" in said


@pytest.mark.parametrize("wire", [0.0, 0.5])
@pytest.mark.parametrize("alpha", [0.2, 0.6, 0.9])
def test_speculation_pays_just_below_the_cost_that_advice_names(alpha: float, wire: float) -> None:
    named = re.search(r"less than ([\d.]+) target", advice(Plan(alpha, 2.0, wire, 2.0, 16)))
    assert named is not None
    limit = float(named[1])
    assert Plan(alpha, limit * 0.99, wire, 1.0, 16).best > 0
    assert Plan(alpha, limit * 1.01, wire, 1.0, 16).best == 0


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
        ((*COSTS, "--max-draft-tokens", "0"), "--max-draft-tokens is 0; it must be in [1, 16]"),
        ((*COSTS, "--max-draft-tokens", "17"), "--max-draft-tokens is 17; it must be in [1, 16]"),
        ((*COSTS, "--png", "/no/such/folder/a.png"), "--png is '/no/such/folder/a.png'; it must be a file in a folder"),
        ((*COSTS, "--png", "/tmp/a.jpg"), "--png is '/tmp/a.jpg'; it must be a file whose name ends in .png"),
        ((*COSTS, "--prompts", "x"), "--prompts needs --measure"),
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
