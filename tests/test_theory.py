"""The formulas give the paper's own tables (Leviathan, Kalman, Matias 2211.17192)."""

import pytest

from paceline.theory import best_k, operations, speedup, tokens_per_round

# Table 1: alpha, gamma, operations, speed, at c = 0.
TABLE_1 = [
    (0.6, 2, 1.53, 1.96), (0.7, 3, 1.58, 2.53), (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69), (0.9, 2, 1.11, 2.71), (0.9, 10, 1.60, 6.86),
]  # fmt: skip
# Table 4: gamma, alpha, c, expected speed.
TABLE_4 = [
    (7, 0.75, 0.02, 3.2), (7, 0.8, 0.04, 3.3), (7, 0.82, 0.11, 2.5), (7, 0.62, 0.02, 2.3),
    (5, 0.68, 0.04, 2.4), (3, 0.71, 0.11, 2.0), (5, 0.65, 0.02, 2.4), (5, 0.73, 0.04, 2.6),
    (3, 0.74, 0.11, 2.0), (5, 0.53, 0.02, 1.9), (3, 0.55, 0.04, 1.8), (3, 0.56, 0.11, 1.6),
]  # fmt: skip


@pytest.mark.parametrize(("alpha", "k", "expected_operations", "expected_speed"), TABLE_1)
def test_table_1(alpha: float, k: int, expected_operations: float, expected_speed: float) -> None:
    # Printed rounded, one entry cut off instead: half a unit of the last place, and a little.
    assert operations(alpha, k, 0.0) == pytest.approx(expected_operations, abs=0.0051)
    assert speedup(alpha, k, 0.0) == pytest.approx(expected_speed, abs=0.0051)


@pytest.mark.parametrize(("k", "alpha", "c", "expected"), TABLE_4)
def test_table_4(k: int, alpha: float, c: float, expected: float) -> None:
    # The printed alpha and c are rounded.
    assert speedup(alpha, k, c) == pytest.approx(expected, abs=0.1)


def test_certain_acceptance_emits_every_draft_and_the_bonus_token() -> None:
    assert tokens_per_round(1.0, 4) == 5


def test_a_draft_that_never_agrees_or_costs_as_much_as_the_target_does_not_pay() -> None:
    assert best_k(0.0, 0.1) == 0
    assert best_k(0.6, 1.0) == 0


def test_the_best_k_grows_with_alpha_and_shrinks_with_cost() -> None:
    by_alpha = [best_k(alpha, 0.05) for alpha in (0.3, 0.5, 0.7, 0.8, 0.9)]
    assert by_alpha == sorted(by_alpha)
    assert best_k(0.8, 0.01) > best_k(0.8, 0.1) > best_k(0.8, 0.4)
