"""`paceline plan` says what the theory says, and takes its figures from services that run."""

import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from paceline.cli import main
from paceline.cli.measure import MEASURED_K, SEED, SHORT_TOKENS, Tally, conclude
from paceline.cli.plan import Plan, advice
from paceline.cli.plot import BLOCKS, COLUMN_WIDTH, HEIGHT, terminal_plot
from paceline.client import Client
from paceline.errors import ConfigError
from paceline.sampling import SamplingParams, SpeculationParams
from tests.services import Trio, start_trio

FLAGS = ("--dtype", "float32", "--kv-cache-memory", "16MiB", "--block-size", "16", "--threads", "1")
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
ALPHA, COST, WIRE, OPERATIONS_COST = 0.8, 0.1, 0.2, 0.05
COSTS = ("--alpha", ALPHA, "--draft-cost", COST, "--wire", WIRE, "--operations-cost", OPERATIONS_COST)
TEXTS = ["t3 t1 t4 t1 t5", "t2 t7 t1 t8", "t9 t11 t30 t12", "t21 t22"]
# The dummy models end greedy texts soon, or not at all.
MEASURED_TOKENS, TEMPERATURE = 60, 0.8


class Ran(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def paceline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Runs `paceline` with these arguments."""

    def run(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["paceline", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_info:
            main()
        code = exit_info.value.code
        return Ran(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


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


def test_measuring_where_nobody_serves_is_a_failed_run(paceline: Callable[..., Ran], tmp_path: Path) -> None:
    ran = paceline("plan", "--measure", "--address", f"unix:{tmp_path}/nobody.sock")
    assert ran.code == 1
    assert ran.err.strip().splitlines()[-1].startswith("error: ")
    assert ran.out == ""


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


def test_figures_are_those_of_rounds_with_drafts_over_plain_forwards() -> None:
    plain = Tally(rounds=100, tokens=100, target_ms=1000.0, between_ms=100.0)
    ahead = Tally(
        rounds=40, tokens=100, proposed=160, accepted=60, rejected=20, draft_ms=320.0, target_ms=480.0, between_ms=80.0
    )
    found = conclude(ahead, plain)
    assert found.target_ms == 10.0
    assert found.alpha == 60 / 80
    assert found.draft_cost == pytest.approx(0.2)
    assert found.wire == pytest.approx(0.2)
    assert found.verify_cost == pytest.approx(1.2)
    assert found.speedup == pytest.approx(11.0 / 8.8)


@pytest.mark.parametrize("missing", ["accepted", "rounds", "proposed", "draft_ms"])
def test_what_shows_nothing_is_an_error_and_no_division_by_zero(missing: str) -> None:
    plain = Tally(rounds=10, tokens=10, target_ms=10.0)
    ahead = Tally(rounds=10, tokens=10, proposed=10, accepted=5, draft_ms=10.0, target_ms=10.0)
    conclude(ahead, plain)
    setattr(ahead, missing, 0)
    with pytest.raises(ConfigError, match="--measure"):
        conclude(ahead, plain)


@pytest.fixture(scope="module")
def unlike_trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trio]:
    """Two models that agree now and then."""
    target, draft = ("--model", "dummy:tiny-32-a", *FLAGS), ("--model", "dummy:tiny-32-b", *FLAGS)
    with start_trio(tmp_path_factory.mktemp("plan"), target, draft) as trio:
        yield trio


@pytest.fixture
def prompts_file(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in TEXTS))
    return path


def decisions(address: str) -> tuple[int, int]:
    """Accepted and decided drafts of the same generations, from the counters: who accepts all ends in a bonus token."""
    sampling = SamplingParams(max_tokens=MEASURED_TOKENS, temperature=TEMPERATURE, seed=SEED)
    accepted = rejected = 0
    with Client(address) as client:
        for text in TEXTS:
            whole = client.complete(text, sampling, SpeculationParams(num_draft_tokens=MEASURED_K))
            assert whole.finish is not None
            figures = whole.finish.speculation
            ended_among_drafts = whole.finish.reason == "stop" and whole.origins.endswith("A")
            accepted += figures.accepted
            rejected += figures.proposed_per_position[0] - whole.origins.count("B") - ended_among_drafts
    return accepted, accepted + rejected


def test_measured_alpha_is_the_acceptance_of_decided_drafts(
    paceline: Callable[..., Ran], unlike_trio: Trio, prompts_file: Path
) -> None:
    measuring = ("--measure", "--address", unlike_trio.address, "--prompts", prompts_file)
    ran = paceline("plan", *measuring, "--max-tokens", MEASURED_TOKENS, "--temperature", TEMPERATURE, "--json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    accepted, decided = decisions(unlike_trio.address)
    assert (record["measured"]["accepted"], record["measured"]["decided"]) == (accepted, decided)
    assert 0 < record["alpha"] == accepted / decided < 1
    assert record["draft_cost"] == record["measured"]["draft_cost"] > 0
    assert record["wire"] == record["measured"]["wire"] > 0
    assert decided > len(TEXTS) * SHORT_TOKENS


def test_a_short_generation_is_taken_away_from_a_long_one(unlike_trio: Trio) -> None:
    with Client(unlike_trio.address) as client:
        sampling = SamplingParams(max_tokens=20, ignore_eos=True)
        whole = client.complete(TEXTS[0], sampling, SpeculationParams(num_draft_tokens=MEASURED_K))
    assert whole.finish is not None
    tally = Tally()
    tally.add(whole)
    assert (tally.rounds, tally.proposed) == (whole.finish.speculation.rounds, whole.finish.speculation.proposed)
    assert tally.tokens == 20
    assert 0 < tally.round_ms <= whole.finish.timing.total_ms
    tally.add(whole, sign=-1)
    assert tally == Tally()


def test_a_figure_given_overrules_the_measured_one(
    paceline: Callable[..., Ran], unlike_trio: Trio, prompts_file: Path
) -> None:
    measuring = ("--measure", "--address", unlike_trio.address, "--prompts", prompts_file)
    ran = paceline("plan", *measuring, "--temperature", TEMPERATURE, "--draft-cost", "0.125", "--json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert record["draft_cost"] == 0.125 != record["measured"]["draft_cost"]
    assert record["alpha"] == record["measured"]["alpha"]


def test_a_draft_that_is_the_target_costs_as_much_and_is_always_right(
    paceline: Callable[..., Ran], real_trio: Trio
) -> None:
    ran = paceline("plan", "--measure", "--address", real_trio.address, "--max-tokens", 24)
    found = re.search(r"alpha ([\d.]+), draft cost ([\d.]+), wire ([\d.]+)", ran.out)
    assert found is not None, ran
    # The same model drafts and decides; a busy machine moves the times, not to a whole round's four steps.
    assert float(found[1]) >= 0.98
    assert 0.4 < float(found[2]) < 2.5
