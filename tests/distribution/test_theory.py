"""The formulas give the paper's own tables (Leviathan, Kalman, Matias 2211.17192)."""

import math
from fractions import Fraction
from itertools import pairwise

import pytest

from paceline.theory import (
    accepted_per_round,
    best_k,
    expected_tokens,
    operations,
    oracle_speedup,
    oracle_tokens,
    speedup,
    target_reads,
    tokens_per_round,
)

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


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.9, 0.999])
def test_expected_tokens_are_equation_1_for_every_k(alpha: float) -> None:
    found = list(expected_tokens(alpha, 16))
    assert found == pytest.approx([(1 - alpha ** (k + 1)) / (1 - alpha) for k in range(17)])
    assert found == [tokens_per_round(alpha, k) for k in range(17)]


def test_a_draft_that_never_agrees_or_costs_as_much_as_the_target_does_not_pay() -> None:
    assert best_k(0.0, 0.1) == 0
    assert best_k(0.6, 1.0) == 0


def test_the_best_k_grows_with_alpha_and_shrinks_with_cost() -> None:
    by_alpha = [best_k(alpha, 0.05) for alpha in (0.3, 0.5, 0.7, 0.8, 0.9)]
    assert by_alpha == sorted(by_alpha)
    assert best_k(0.8, 0.01) > best_k(0.8, 0.1) > best_k(0.8, 0.4)


# Figure 3: the best gamma over alpha, a curve for each c. Exact numbers, so that rounding decides no near tie.
FIGURE_3_ALPHAS = [Fraction(percent, 100) for percent in range(5, 100, 5)]
FIGURE_3_COSTS = [Fraction(1, 100), Fraction(2, 100), Fraction(5, 100), Fraction(1, 10), Fraction(1, 2)]
FIGURE_3_LONGEST = 100


def best_gamma(alpha: Fraction, c: Fraction) -> int:
    """By trying them all, with a round's tokens as the sum they are: position i is reached with chance alpha^i."""
    tokens, best, fastest = Fraction(0), 0, Fraction(0)
    for gamma in range(FIGURE_3_LONGEST + 1):
        tokens += alpha**gamma
        if tokens / (gamma * c + 1) > fastest:
            best, fastest = gamma, tokens / (gamma * c + 1)
    return best


def curve(c: Fraction) -> list[int]:
    return [best_k(float(alpha), float(c), longest=FIGURE_3_LONGEST) for alpha in FIGURE_3_ALPHAS]


@pytest.mark.parametrize("c", FIGURE_3_COSTS, ids=str)
def test_figure_3_is_the_optimum_over_all_gammas(c: Fraction) -> None:
    expected = [best_gamma(alpha, c) for alpha in FIGURE_3_ALPHAS]
    # The optimum lies inside what was tried.
    assert max(expected) < FIGURE_3_LONGEST
    assert curve(c) == expected


def test_figure_3_rises_with_alpha_and_falls_with_c() -> None:
    curves = [curve(c) for c in FIGURE_3_COSTS]
    for found in curves:
        assert found == sorted(found)
        assert found[-1] > found[0]
    for cheap, dear in pairwise(curves):
        assert all(at_cheap >= at_dear for at_cheap, at_dear in zip(cheap, dear, strict=True))
        assert cheap[-1] > dear[-1]


# Worked out by hand at c = 0.1 from (1 - alpha^(gamma+1)) / ((1 - alpha)(gamma c + 1)).
@pytest.mark.parametrize(
    ("alpha", "speeds"),
    [
        (0.5, {1: 1.5 / 1.1, 2: 1.75 / 1.2, 3: 1.875 / 1.3}),
        (0.8, {5: 3.68928 / 1.5, 6: 3.951424 / 1.6, 7: 4.1611392 / 1.7}),
    ],
)
def test_the_best_gamma_is_a_peak(alpha: float, speeds: dict[int, float]) -> None:
    for gamma, expected in speeds.items():
        assert speedup(alpha, gamma, 0.1) == pytest.approx(expected, rel=1e-12)
    assert best_k(alpha, 0.1) == max(speeds, key=lambda gamma: speeds[gamma])


@pytest.mark.parametrize("c", [0.05, 0.3, 0.7])
def test_speculation_pays_exactly_where_alpha_exceeds_c(c: float) -> None:
    """Corollary 3.9, with its least improvement (1 + alpha) / (1 + c)."""
    assert best_k(c - 0.01, c) == 0
    assert best_k(c + 0.01, c) >= 1
    alpha = c + 0.2
    assert speedup(alpha, best_k(alpha, c), c) >= (1 + alpha) / (1 + c)


def test_a_bigram_table_as_draft() -> None:
    """Section 3.6: alpha 0.2 for nothing gives 1.25X at gamma 3."""
    assert speedup(0.2, 3, 0.0) == pytest.approx(1.25, abs=0.005)


@pytest.mark.parametrize(
    ("alpha", "printed", "by_equation_1"), [(0.5, 0.94, 0.94), (0.7, 2.05, 1.77), (0.9, 3.28, 3.10)]
)
def test_accepted_drafts_of_four(alpha: float, printed: float, by_equation_1: float) -> None:
    """By the sum that akunu's article on n-grams writes down: i drafts and then a rejection, or all four. The article
    prints `printed`, which is not that sum's value for 0.7 and 0.9."""
    summed = sum(i * alpha**i * (1 - alpha) for i in range(4)) + 4 * alpha**4
    assert accepted_per_round(alpha, 4) == pytest.approx(summed, rel=1e-12)
    assert accepted_per_round(alpha, 4) == pytest.approx(by_equation_1, abs=0.005)
    assert (abs(accepted_per_round(alpha, 4) - printed) < 0.005) is (alpha == 0.5)


@pytest.mark.parametrize("alpha", [0.0, 0.4, 1.0])
def test_the_target_is_read_once_a_round(alpha: float) -> None:
    """Section 3.4: reads of weights and cache shrink by equation 1."""
    for k in range(5):
        assert target_reads(alpha, k) * sum(alpha**i for i in range(k + 1)) == pytest.approx(1)


def test_rows_that_cost_time_slow_a_round_by_their_number() -> None:
    # A forward pass of five rows that takes 1.3 times as long as one of one row, as akunu's article has it on Apple Silicon.
    assert speedup(0.7, 4, 0.0, verify=0.075) == pytest.approx((1 + 0.7 + 0.49 + 0.343 + 0.2401) / 1.3)
    # A row's time and a draft step's are paid alike.
    assert speedup(0.8, 5, 0.03, 0.1, verify=0.07) == pytest.approx(speedup(0.8, 5, 0.1, 0.1))
    assert [best_k(0.8, 0.1, verify=v) for v in (0.0, 0.1, 0.4, 0.8)] == [6, 4, 2, 0]


@pytest.mark.parametrize(("alpha", "tokens"), [(0.0, 1.0), (0.5, 2.0), (0.8, 5.0), (1.0, math.inf)])
def test_an_oracle_has_as_many_tokens_a_round_as_the_text_gives(alpha: float, tokens: float) -> None:
    """Section 3.5: 1 / (1 - alpha)."""
    assert oracle_tokens(alpha) == pytest.approx(tokens)


def test_an_oracle_pays_for_accepted_drafts_and_the_targets_own_tokens() -> None:
    # Four of five tokens were drafted: 4 * 0.1 and one forward pass.
    assert oracle_speedup(0.8, 0.1) == pytest.approx(5 / 1.4)
    assert oracle_speedup(0.8, 0.1, rpc_cost=0.2, verify=0.05) == pytest.approx(5 / (4 * 0.15 + 1.2))
    # Rounds with a known number of drafts: it is n with probability alpha^n (1 - alpha).
    rounds = [(0.8**n * 0.2, n) for n in range(400)]
    tokens, time = sum(chance * (n + 1) for chance, n in rounds), sum(chance * (0.1 * n + 1) for chance, n in rounds)
    assert oracle_speedup(0.8, 0.1) == pytest.approx(tokens / time)


def test_an_oracle_drafts_nothing_where_drafts_cost_more_than_the_target() -> None:
    assert oracle_speedup(0.8, 1.5) == pytest.approx(1.0)
    assert oracle_speedup(1.0, 0.0) == math.inf
    assert oracle_speedup(0.0, 0.0) == pytest.approx(1.0)


def over_the_best_gamma(alpha: float, c: float) -> float:
    return oracle_speedup(alpha, c) / speedup(alpha, best_k(alpha, c, longest=400), c)


def test_an_oracle_is_up_to_60_percent_faster_than_the_best_gamma() -> None:
    """Section 3.5 has some 60 % "for typical values". It is e/(e - 1), 58 %: the maximum, if a draft is
    nearly always right and (1 - alpha) / c is e - 2, and less everywhere else."""
    most = math.e / (math.e - 1)
    misses, costs = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7), (0.014, 0.02, 0.05, 0.1, 0.3, 0.6)
    found = {(1 - miss, c): over_the_best_gamma(1 - miss, c) for miss in misses for c in costs}
    assert all(1 <= ratio < most for ratio in found.values())
    assert max(found, key=lambda at: found[at]) == (0.99, 0.014)
    assert found[0.99, 0.014] == pytest.approx(1.58, abs=0.01)
    # Nothing can be gained if all drafts are accepted, or none.
    assert over_the_best_gamma(0.01, 0.1) == pytest.approx(1.0, abs=0.02)
