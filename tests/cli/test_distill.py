"""`paceline distill`: what is wrong is said before anything is loaded. What it does: tests/distillation."""

from pathlib import Path

import pytest
import torch


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--tokens", "10", "tokens is 10; it must be at least 1000"),
        ("--hours", "0", "hours is 0.0; it must be above 0"),
        ("--divergence", "js", "divergence is 'js'; it must be kl or overlap"),
        ("--learning-rate", "0", "learning_rate is 0.0; it must be in (0, 1)"),
        ("--batch-tokens", "8", "batch_tokens is 8; it must be at least 512"),
    ],
)
def test_bad_settings_are_named(paceline, tmp_path: Path, flag: str, value: str, said: str) -> None:
    ran = paceline("distill", "--out", tmp_path / "work", flag, value)
    assert (ran.code, said in ran.err) == (2, True), ran.err
    assert not (tmp_path / "work").exists()


def test_hours_and_tokens_exclude_each_other(paceline, tmp_path: Path) -> None:
    ran = paceline("distill", "--out", tmp_path / "work", "--hours", "1", "--tokens", "5000")
    assert (ran.code, "hours is 1.0; it must be absent if --tokens is given" in ran.err) == (2, True), ran.err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there_is_named_before_anything_is_written(paceline, tmp_path: Path) -> None:
    ran = paceline("distill", "--out", tmp_path / "work", "--device", "cuda")
    assert (ran.code, "device is 'cuda'; torch finds no such device here" in ran.err) == (1, True), ran.err
    assert not (tmp_path / "work").exists()


def test_a_beginning_of_another_vocabulary_is_named(paceline, tmp_path: Path) -> None:
    ran = paceline("distill", "--out", tmp_path / "work", "--target", "dummy:tiny", "--init-from", "smollm2-135m")
    said = "init_from 'smollm2-135m': its vocab_size is 49152; it must be the target's, 512"
    assert (ran.code, said in ran.err) == (1, True), ran.err
    assert not (tmp_path / "work").exists()
