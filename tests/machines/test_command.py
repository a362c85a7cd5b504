"""`python -m benchmarks.machines` simulates what its flags say, and prints what it found."""

import json

import pytest

from benchmarks.machines.__main__ import main
from benchmarks.machines.simulation import Deployment, Load, Outcome, deployments


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Load]:
    """Replaces the simulation; returns what it is asked for. The speed is 100 times the drafts, and 50 without."""
    asked = []

    def simulate(deployment: Deployment, load: Load) -> Outcome:
        asked.append(load)
        return Outcome(100 * deployment.num_drafts or 50, 41, 5.4, 99.6)

    monkeypatch.setattr("benchmarks.machines.__main__.simulate", simulate)
    return asked


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("0",), "N is 0; it must be in [1, 64]"),
        (("65",), "N is 65; it must be in [1, 64]"),
        (("1", "--users", "0"), "--users is 0; it must be in [1, 10000]"),
        (("1", "--users", "10001"), "--users is 10001; it must be in [1, 10000]"),
        (("1", "--alpha", "nan"), "--alpha is nan; it must be in [0, 1]"),
        (("1", "--k", "17"), "--k is 17; it must be in [1, 16]"),
        (("1", "--target-ms", "0"), "--target-ms is 0.0; it must be a finite number > 0"),
        (("1", "--draft-cost", "-1"), "--draft-cost is -1.0; it must be a finite number >= 0"),
    ],
)
def test_bad_input_names_flag_and_range(flags: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(flags)
    assert said in capsys.readouterr().err


def test_machines_are_compared_in_a_table(loads: list[Load], capsys: pytest.CaptureFixture[str]) -> None:
    main(["3"])
    out = capsys.readouterr().out
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line[0:1] == "│"]
    assert cells == [
        ["3 targets, no drafts", "50", "41", "5", "100"],
        ["3 pairs", "300", "41", "5", "100"],
        ["2 targets, 1 draft", "100", "41", "5", "100"],
        ["1 target, 2 drafts", "200", "41", "5", "100"],
    ]
    said = " ".join(out.split())
    assert "Best: 3 pairs, 6.00 times the speed without drafts." in said
    # The built-in costs, and where they are from.
    assert set(loads) == {Load(300)}
    assert "alpha 0.8, k 4; target forward pass 2.97 ms, draft step 1.16" in said
    assert "Llama 3.2 3B and 1B on an H100" in said


def test_machines_have_the_costs_that_were_given(loads: list[Load], capsys: pytest.CaptureFixture[str]) -> None:
    flags = ("--alpha", "0.6", "--k", "2", "--draft-cost", "0.1", "--rpc-cost", "0.4", "--verify-cost", "0.05")
    main(["2", "--users", "7", *flags, "--json"])
    load, record = loads[0], json.loads(capsys.readouterr().out)
    assert (load.num_users, load.alpha, load.k) == (7, 0.6, 2)
    forward_ms = Load(1).target.forward
    assert load.target.forward == pytest.approx(forward_ms)
    assert load.target.token == pytest.approx(0.05 * forward_ms)
    assert load.draft.forward == pytest.approx(0.1 * forward_ms)
    assert 2 * load.rpc_ms == pytest.approx(0.4 * forward_ms)
    assert [row["deployment"] for row in record["deployments"]] == [str(each) for each in deployments(2)]
    assert (record["best"], record["alpha"], record["deployments"][1]["speed"]) == ("2 pairs", 0.6, 200)


def test_costs_are_multiples_of_the_given_forward(loads: list[Load]) -> None:
    main(["1", "--target-ms", "29.7", "--draft-cost", "0.2", "--rpc-cost", "0.3", "--verify-cost", "0.1"])
    load = loads[0]
    assert (load.target.forward, load.target.token, load.draft.forward) == pytest.approx((29.7, 2.97, 5.94))
    assert 2 * load.rpc_ms == pytest.approx(8.91)
    # Ten times the built-in forward pass.
    assert load.target.cached == pytest.approx(10 * Load(1).target.cached)


def test_a_simulation_runs_in_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("benchmarks.machines.simulation.MEASURED", 20)
    main(["1", "--users", "1", "--alpha", "1", "--json"])
    plain, pair = json.loads(capsys.readouterr().out)["deployments"]
    assert pair["speed"] > 1.5 * plain["speed"] > 0
