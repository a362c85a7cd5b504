"""What is learned of rounds by their kind: asked for, gone on with by the target itself, and with drafts."""

from collections.abc import Sequence

import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.admission import ActiveGenerations
from coordinator.policy.costs import FIRST_ROUNDS, Began, CostModel
from coordinator.reports import VerifyReport
from coordinator.stats import Round
from tests.coordinator.policy.world import told

FORWARD_S, MESSAGE_S = 0.02, 0.002


def costs_after(
    *rounds: tuple[Began, float], times: int = 20, drafts: Sequence[int] = (), computed_s: float = FORWARD_S
) -> CostModel:
    """`rounds`: their kinds, and the seconds that they take beside a forward pass."""
    costs, now_s = CostModel(ActiveGenerations(), lambda: told(FORWARD_S, 0.001)), 0.0
    for began, extra_s in rounds:
        for _ in range(times):
            report = VerifyReport(compute_us=int(computed_s * 1e6))
            outcome, seconds = Outcome([0], 0, Origin.TARGET), FORWARD_S + extra_s
            finished = Round(
                Proposal([*drafts]), VerifyResult([0], report=report), outcome, now_s, now_s, now_s + seconds
            )
            costs.learn(finished, seconds, None, 0, is_like_others=True, num_unfed=1, began=began)
    return costs


def test_a_target_that_goes_on_saves_a_message_as_far_as_is_known() -> None:
    costs = costs_after((Began.ASKED, MESSAGE_S))
    assert costs.rounds.plain_s == pytest.approx(FORWARD_S + MESSAGE_S)
    assert costs.rounds.message_s == pytest.approx(MESSAGE_S)
    assert costs.rounds.suggestion_s == pytest.approx(MESSAGE_S / 2)


def test_what_each_kind_takes_is_learned() -> None:
    costs = costs_after((Began.ASKED, MESSAGE_S), (Began.FREE, 0.0005), (Began.SUGGESTING, 0.0012))
    assert costs.rounds.message_s == pytest.approx(0.0015)
    assert costs.rounds.suggestion_s == pytest.approx(0.0007)


def test_rounds_that_wait_for_another_generations_drafts_are_not_learned_from() -> None:
    costs = costs_after((Began.ASKED, MESSAGE_S))
    outcome = Outcome([0], 0, Origin.TARGET)
    for _ in range(20):
        costs.learn(Round(Proposal(), VerifyResult([0]), outcome, 0.0, 0.0, 0.1), 0.1, None, 0, False, num_unfed=1)
    assert costs.rounds.plain_s == pytest.approx(FORWARD_S + MESSAGE_S)


def test_rounds_gone_on_with_that_seemed_to_save_nothing_are_tried_again() -> None:
    """Where they seem to save nothing there are none, and nothing more is learned of them."""
    asked = (Began.ASKED, MESSAGE_S)
    assert costs_after(asked, (Began.FREE, 0.01)).rounds.message_s < 0
    assert costs_after(asked, (Began.FREE, 0.01), *[asked] * 4).rounds.message_s > 0


def test_a_suggestion_never_seems_to_take_more_than_a_message() -> None:
    costs = costs_after((Began.ASKED, MESSAGE_S), (Began.FREE, 0.0), (Began.SUGGESTING, 0.05))
    assert costs.rounds.suggestion_s == pytest.approx(MESSAGE_S)


def test_a_round_takes_its_forward_pass() -> None:
    """Else plain rounds would seem to take less than no time, and a second to be worth less than nothing."""
    costs = costs_after((Began.ASKED, MESSAGE_S), (Began.FREE, -0.1))
    assert costs.rounds.message_s == pytest.approx(MESSAGE_S)


def test_a_pause_says_nothing_of_the_next_round() -> None:
    costs = costs_after((Began.ASKED, MESSAGE_S))
    began_s = costs.rounds.plain_s
    costs.learn(
        Round(Proposal(), VerifyResult([0]), Outcome([0], 0, Origin.TARGET), 0.0, 0.0, 60.0), 60.0, None, 0, True, 1
    )
    assert costs.rounds.plain_s < 1.06 * began_s


def test_first_rounds_count_whatever_the_server_told() -> None:
    costs = costs_after((Began.ASKED, 20 * FORWARD_S), times=FIRST_ROUNDS)
    assert costs.rounds.plain_s == pytest.approx(21 * FORWARD_S)


def test_drafts_never_seem_to_save_time() -> None:
    """A server that told too much of long forward passes is corrected by them, but not below a shorter one."""
    costs = costs_after((Began.LOOKED_UP, -0.005), (Began.ASKED, 0.0), drafts=[0] * 8, computed_s=0.01)
    assert costs.rounds.verify_s(1) >= costs.rounds.plain_s


def test_times_that_were_told_too_long_and_are_corrected_leave_a_round_that_takes_time() -> None:
    costs = costs_after((Began.FREE, -0.015), (Began.ASKED, 0.0), computed_s=0.005)
    costs._target_times = lambda: told(0.005, 0.0)
    _ = costs.rounds
    costs._target_times = lambda: told(0.004, 0.0)
    assert costs.rounds.free_s > 0
    assert costs.rounds.plain_s > 0
    assert costs.rounds.num_late >= 1


def test_a_level_that_was_only_passed_is_guessed_by_what_is_learned_later() -> None:
    active, generations = ActiveGenerations(clock=lambda: -1.0), [object() for _ in range(8)]
    costs = CostModel(active, lambda: told(FORWARD_S, 0.001))
    for generation in generations:
        _ = costs.rounds
        costs.active.join(generation)
        costs.active.has_read(generation)
    finished = Round(Proposal(), VerifyResult([0]), Outcome([0], 0, Origin.TARGET), 0.0, 0.0, 0.1)
    for _ in range(9):
        costs.learn(finished, 0.1, None, 0, is_like_others=True, num_unfed=1)
    learned_s = costs.rounds.plain_s
    assert learned_s > 0.09
    for generation in generations[:5]:
        costs.active.leave(generation)
    assert costs.rounds.plain_s == pytest.approx(learned_s - 5 * 0.001)
