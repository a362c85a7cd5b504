"""`paceline demo`: what can't be compared is said before anything starts. The whole of it is what `make demo` runs."""

import inspect
import re

import pytest
from rich.console import Console

from coordinator.config import CoordinatorSettings
from paceline.cli.demo import TIMED_RUNS, compare, demo
from paceline.client import AsyncClient
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.services import Trio


@pytest.mark.parametrize(("value", "said"), [("0", "at least 1"), ("17", "in [0, 16], adaptive or entropy")])
def test_bad_draft_tokens_are_named(paceline, value: str, said: str) -> None:
    ran = paceline("demo", "--num-speculative-tokens", value)
    assert (ran.code, f"num_speculative_tokens is '{value}'" in ran.err, said in ran.err) == (2, True, True), ran.err


def test_a_bound_without_a_rule_is_named(paceline) -> None:
    ran = paceline("demo", "--num-speculative-tokens", 4, draft_max=6)
    assert (ran.code, "draft_max is 6; it must be left out unless" in ran.err) == (2, True), ran.err


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--max-tokens", 0, "max_tokens is 0; it must be in"),
        ("--drafter", "custom", "--drafter is 'custom'; it must be model,"),
        ("--pair", "qwen", "--pair is 'qwen'; it must be one of smollm2, qwen2.5-coder"),
    ],
)  # fmt: skip
def test_what_no_service_could_do_starts_none(paceline, flag: str, value: object, said: str) -> None:
    ran = paceline("demo", flag, value)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(f"error: {said}")


async def test_table_and_comparison_tell_the_same_speed(tiny_trio: Trio, capsys: pytest.CaptureFixture[str]) -> None:
    async with AsyncClient(tiny_trio.address) as client:
        sampling = SamplingParams(max_tokens=20)
        off, on = await compare(Console(width=100), client, "one two", sampling, SpeculationParams())
    shown, said = capsys.readouterr()
    table = re.search(r"tokens per second[ │]+([\d.]+)", said)
    below = re.search(r"with speculation: +([\d.]+) tokens/s", shown)
    assert table is not None
    assert below is not None
    assert table[1] == below[1] == f"{on:.1f}"
    assert f"({on / off:.2f} x)" in shown
    assert f"{TIMED_RUNS} timed runs" in said
    assert re.search(rf"tokens[ │]+{20 * TIMED_RUNS}\b", said)


def test_the_default_is_the_coordinators_own() -> None:
    defaults = {name: parameter.default for name, parameter in inspect.signature(demo).parameters.items()}
    settings = CoordinatorSettings()
    assert (defaults["drafter"], defaults["num_speculative_tokens"]) == (
        settings.drafter,
        settings.num_speculative_tokens,
    )
