"""`paceline distill`: what is wrong is said before anything is loaded. What it does: tests/distillation."""

from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--tokens", "10", "tokens is 10; it must be at least 1000"),
        ("--divergence", "js", "divergence is 'js'; it must be kl or overlap"),
        ("--learning-rate", "0", "learning_rate is 0.0; it must be in (0, 1)"),
        ("--batch-tokens", "8", "batch_tokens is 8; it must be at least 512"),
    ],
)
def test_bad_settings_are_named(paceline, tmp_path: Path, flag: str, value: str, said: str) -> None:
    ran = paceline("distill", "--out", tmp_path / "work", flag, value)
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not (tmp_path / "work").exists()


def test_a_missing_file_of_questions_is_named(paceline, tmp_path: Path) -> None:
    ran = paceline("distill", "--out", tmp_path / "work", "--held-out", tmp_path / "none.jsonl")
    assert (ran.code, "none.jsonl: no such file" in ran.err) == (1, True), ran.err
