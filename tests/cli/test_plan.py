"""`paceline plan` says what the theory says."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli.plan import advice
from paceline.cli.plots import BLOCKS, COLUMN_WIDTH, HEIGHT, terminal_plot
from paceline.theory import Forecast
from tests.cli.conftest import Ran

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ALPHA, COST, RPC_COST, OPERATIONS_COST = 0.8, 0.1, 0.2, 0.05
COSTS = ("--alpha", ALPHA, "--draft-cost", COST, "--rpc-cost", RPC_COST, "--operations-cost", OPERATIONS_COST)


def summed(k: int) -> float:
    """Tokens per round, as the sum it is: the chance that each position is reached."""
    return sum(ALPHA**i for i in range(k + 1))


def test_table_holds_the_theory(paceline: Callable[..., Ran]) -> None:
    ran = paceline("plan", *COSTS, "--max-draft-tokens", 7)
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in ran.out.splitlines() if line[0:1] == "│"]
    assert [row[0] for row in cells] == [str(k) for k in range(8)]
    for k, row in enumerate(cells):
        speed = summed(k) / (COST * k + 1 + RPC_COST)
        work = (OPERATIONS_COST * k + k + 1) / summed(k)
        figures = f"{summed(k) - 1:.2f}", f"{summed(k):.2f}", f"{speed:.2f}x", f"{speed * (1 + RPC_COST):.2f}x"
        assert tuple(row[1:]) == (*figures, f"{work:.2f}x", f"{1 / summed(k):.2f}x")
    assert ran.code == 0


def test_json_holds_the_theory_and_the_best_k(paceline: Callable[..., Ran]) -> None:
    ran = paceline("plan", *COSTS, "--json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    speeds = [summed(k) / (COST * k + 1 + RPC_COST) for k in range(17)]
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
    assert record["rpc_cost"] == 0
    assert record["rounds"][1]["operations"] == pytest.approx((0.3 + 1 + 1) / 1.5)


def test_advice_names_the_best_k_and_its_speed(paceline: Callable[..., Ran]) -> None:
    said = " ".join(paceline("plan", "--alpha", 0.8, "--draft-cost", 0.1).out.split())
    assert "Speculate with 6 draft tokens per round: expect 2.47 times the speed of plain decoding." in said
    said = " ".join(paceline("plan", "--alpha", 0.3, "--draft-cost", 0.4).out.split())
    assert "Do not speculate" in said
    assert "less than 0.3 target forward passes, and it takes 0.4" in said


@pytest.mark.parametrize("verify", [0.0, 0.1])
@pytest.mark.parametrize("rpc_cost", [0.0, 0.5])
@pytest.mark.parametrize("alpha", [0.2, 0.6, 0.9])
def test_speculation_pays_just_below_the_cost_that_advice_names(alpha: float, rpc_cost: float, verify: float) -> None:
    named = re.search(r"less than ([\d.]+) target", advice(Forecast(alpha, 2.0, rpc_cost, 2.0, 16, verify)))
    assert named is not None
    limit = float(named[1])
    assert Forecast(alpha, limit * 0.99, rpc_cost, 1.0, 16, verify).best > 0
    assert Forecast(alpha, limit * 1.01, rpc_cost, 1.0, 16, verify).best == 0


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
        ((*COSTS, "--rpc-cost", "-0.5"), "--rpc-cost is -0.5; it must be a finite number >= 0"),
        ((*COSTS, "--operations-cost", "nan"), "--operations-cost is nan; it must be a finite number >= 0"),
        ((*COSTS, "--verify-cost", "-0.1"), "--verify-cost is -0.1; it must be a finite number >= 0"),
        ((*COSTS, "--verify-cost", "inf"), "--verify-cost is inf; it must be a finite number >= 0"),
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


def said_by(paceline: Callable[..., Ran], *flags: object) -> str:
    ran = paceline("plan", *flags)
    assert ran.code == 0, ran.err
    return " ".join(ran.out.split())


def test_drafted_rows_that_cost_time_lower_speed_and_k(paceline: Callable[..., Ran]) -> None:
    free = json.loads(paceline("plan", *COSTS, "--json").out)
    record = json.loads(paceline("plan", *COSTS, "--verify-cost", 0.1, "--json").out)
    speeds = [summed(k) / ((COST + 0.1) * k + 1 + RPC_COST) for k in range(17)]
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
    # 5 tokens in 4 draft steps and a forward pass, against 3.951424 in 6 and one.
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


def test_a_picture_that_cannot_be_written_is_named(paceline: Callable[..., Ran], tmp_path: Path) -> None:
    (tmp_path / "plan.png").symlink_to(tmp_path / "missing" / "plan.png")
    ran = paceline("plan", *COSTS, "--png", tmp_path / "plan.png")
    assert ran.code == 1
    assert ran.err.startswith(f"error: --png {tmp_path}/plan.png: ")
