"""Trials with speeds that are known."""

from coordinator.choosing.trial import ENOUGH, RETRY, Trial


def play(trial: Trial, num_rounds: int, with_tokens_per_s: float, without_tokens_per_s: float) -> int:
    """How many of so many rounds, of a tenth of a second each, the model was allowed in."""
    num_allowed = 0
    for _ in range(num_rounds):
        allows = trial.allows
        num_allowed += allows
        speed = with_tokens_per_s if allows else without_tokens_per_s
        trial.learn(allows, num_tokens=1, seconds=1 / speed)
    return num_allowed


def test_both_ways_are_measured_and_the_faster_one_stays() -> None:
    assert play(Trial(), 1000, with_tokens_per_s=90, without_tokens_per_s=100) == ENOUGH
    assert play(Trial(), 1000, with_tokens_per_s=110, without_tokens_per_s=100) == 1000 - ENOUGH


def test_a_model_that_is_no_faster_is_left_out() -> None:
    assert play(Trial(), 1000, with_tokens_per_s=101, without_tokens_per_s=100) == ENOUGH


def test_who_lost_is_tried_again_seldom_and_may_win() -> None:
    trial = Trial()
    play(trial, 1000, with_tokens_per_s=90, without_tokens_per_s=100)
    assert play(trial, RETRY, with_tokens_per_s=90, without_tokens_per_s=100) == ENOUGH
    play(trial, RETRY, with_tokens_per_s=120, without_tokens_per_s=100)
    assert trial.allows
