"""What is learned of rounds that the target goes on with by itself."""

import pytest

from coordinator.policy.free_rounds import Began, FreeRounds

MESSAGE_S = 0.002


def test_they_save_a_message_as_far_as_is_known() -> None:
    rounds = FreeRounds()
    assert rounds.saves_s(MESSAGE_S) == MESSAGE_S
    assert rounds.suggestion_s(MESSAGE_S) == MESSAGE_S / 2


def test_what_they_take_is_learned() -> None:
    rounds = FreeRounds()
    for _ in range(20):
        rounds.learn(Began.FREE, 0.0005, MESSAGE_S)
        rounds.learn(Began.SUGGESTING, 0.0012, MESSAGE_S)
    assert rounds.saves_s(MESSAGE_S) == pytest.approx(0.0015)
    assert rounds.suggestion_s(MESSAGE_S) == pytest.approx(0.0007)


def test_a_disturbed_one_is_tried_again() -> None:
    """Where they seem to save nothing there are none, and nothing more is learned of them."""
    rounds = FreeRounds()
    rounds.learn(Began.FREE, 0.01, MESSAGE_S)
    assert rounds.saves_s(MESSAGE_S) < 0
    for _ in range(60):
        rounds.learn(Began.ASKED, 0.0, MESSAGE_S)
    assert rounds.saves_s(MESSAGE_S) > 0


def test_a_suggestion_never_seems_to_take_more_than_a_message() -> None:
    rounds = FreeRounds()
    rounds.learn(Began.FREE, 0.0, MESSAGE_S)
    rounds.learn(Began.SUGGESTING, 0.05, MESSAGE_S)
    assert rounds.suggestion_s(MESSAGE_S) == MESSAGE_S


def test_a_round_saves_no_more_than_its_message() -> None:
    """Else plain rounds would seem to take less than no time, and a second to be worth less than nothing."""
    rounds = FreeRounds()
    rounds.learn(Began.FREE, -0.1, MESSAGE_S)
    assert rounds.saves_s(MESSAGE_S) == MESSAGE_S
