"""`paceline plan --measure` takes its figures from services that run."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli.measure import MEASURED_K, SEED, SHORT_TOKENS, Tally, conclude
from paceline.client import Client
from paceline.errors import ConfigError
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.cli.conftest import Ran
from tests.services import Trio

pytestmark = pytest.mark.slow

TEXTS = ["t3 t1 t4 t1 t5", "t2 t7 t1 t8", "t9 t11 t30 t12", "t21 t22"]
# The dummy models end greedy texts soon, or not at all.
MEASURED_TOKENS, TEMPERATURE = 60, 0.8


def test_measuring_where_nobody_serves_is_a_failed_run(paceline: Callable[..., Ran], tmp_path: Path) -> None:
    ran = paceline("plan", "--measure", "--address", f"unix:{tmp_path}/nobody.sock")
    assert ran.code == 1
    assert ran.err.strip().splitlines()[-1].startswith("error: ")
    assert ran.out == ""


def test_figures_are_those_of_rounds_with_drafts_over_plain_forwards() -> None:
    plain = Tally(rounds=100, tokens=100, target_ms=1000.0, between_ms=100.0)
    ahead = Tally(
        rounds=40, tokens=100, proposed=160, accepted=60, rejected=20, draft_ms=320.0, target_ms=480.0, between_ms=80.0
    )
    found = conclude(ahead, plain)
    assert found.target_ms == 10.0
    assert found.alpha == 60 / 80
    assert found.draft_cost == pytest.approx(0.2)
    assert found.rpc_cost == pytest.approx(0.2)
    assert found.verify_cost == pytest.approx(1.2)
    # Four drafted rows share the fifth that they add.
    assert found.row_cost == pytest.approx(0.05)
    plain.target_ms = 2000.0
    assert conclude(ahead, plain).row_cost == 0
    assert found.speedup == pytest.approx(11.0 / 8.8)


@pytest.mark.parametrize("missing", ["accepted", "rounds", "proposed", "draft_ms"])
def test_what_shows_nothing_is_an_error_and_no_division_by_zero(missing: str) -> None:
    plain = Tally(rounds=10, tokens=10, target_ms=10.0)
    ahead = Tally(rounds=10, tokens=10, proposed=10, accepted=5, draft_ms=10.0, target_ms=10.0)
    conclude(ahead, plain)
    setattr(ahead, missing, 0)
    with pytest.raises(ConfigError, match="--measure"):
        conclude(ahead, plain)


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
            whole = client.complete(
                text, sampling, SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=MEASURED_K)
            )
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
    assert record["rpc_cost"] == record["measured"]["rpc_cost"] > 0
    verifying = record["measured"]["verify_cost"]
    assert record["verify_cost"] == pytest.approx(max(0.0, (verifying - 1) / MEASURED_K))
    assert decided > len(TEXTS) * SHORT_TOKENS


def test_a_short_generation_is_taken_away_from_a_long_one(unlike_trio: Trio) -> None:
    with Client(unlike_trio.address) as client:
        sampling = SamplingParams(max_tokens=20, ignore_eos=True)
        whole = client.complete(
            TEXTS[0], sampling, SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=MEASURED_K)
        )
    assert whole.finish is not None
    tally = Tally()
    tally.add(whole)
    assert (tally.rounds, tally.proposed) == (whole.finish.speculation.rounds, whole.finish.speculation.proposed)
    assert tally.tokens == 20
    assert 0 < tally.round_ms <= whole.finish.timing.total_ms
    tally.add(whole, sign=-1)
    assert tally == Tally()


def test_a_figure_given_overrules_the_measured_one(paceline: Callable[..., Ran], unlike_trio: Trio) -> None:
    # With the built-in prompts.
    measuring = ("--measure", "--address", unlike_trio.address)
    ran = paceline("plan", *measuring, "--temperature", TEMPERATURE, "--draft-cost", "0.125", "--json")
    assert ran.code == 0, ran.err
    record = json.loads(ran.out)
    assert record["draft_cost"] == 0.125 != record["measured"]["draft_cost"]
    assert record["alpha"] == record["measured"]["alpha"]


def test_a_draft_that_is_the_target_costs_as_much_and_is_always_right(
    paceline: Callable[..., Ran], real_trio: Trio, prompts: list[str], tmp_path: Path
) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"turns": [text]}) + "\n" for text in sorted(prompts, key=len)[:2]))
    ran = paceline("plan", "--measure", "--address", real_trio.address, "--prompts", file, "--max-tokens", 32)
    found = re.search(r"alpha ([\d.]+), draft cost ([\d.]+), RPC cost ([\d.]+)", ran.out)
    assert found is not None, ran
    # The same model drafts and decides; a busy machine moves the times, not to a whole round's four steps.
    assert float(found[1]) >= 0.98
    assert 0.4 < float(found[2]) < 2.5
