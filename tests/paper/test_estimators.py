"""The estimators give what is known of known distributions."""

import math

import pytest
import torch

from benchmarks.paper.drafters import Bigram, Copy, Ngrams, Uniform, Unigram
from benchmarks.paper.estimators import (
    accepted,
    accepted_greedily,
    clustered,
    coins_off,
    overlap,
    ratio_of_sums,
    rejection_sampling,
)

P = torch.tensor([[0.6, 0.3, 0.1]])
Q = torch.tensor([[0.4, 0.5, 0.1]])
TRIALS = 40_000


def test_alpha_is_the_overlap_of_the_distributions() -> None:
    assert float(overlap(P, Q)) == pytest.approx(0.8)
    assert float(overlap(P, P)) == pytest.approx(1.0)
    assert float(overlap(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))) == 0.0


@pytest.mark.parametrize(("lenience", "expected"), [(0.5, 0.4 + 0.5 + 0.1), (0.8, 0.4 + 0.375 + 0.1)])
def test_lenience_divides_p(lenience: float, expected: float) -> None:
    """Appendix A.5: the sum of min(p / l, q)."""
    assert float(overlap(P, Q, lenience)) == pytest.approx(expected)


@pytest.mark.parametrize("lenience", [1.0, 0.8])
def test_counted_drafts_agree_with_the_overlap(lenience: float) -> None:
    generator = torch.Generator().manual_seed(1)
    drafts = torch.multinomial(Q[0], TRIALS, replacement=True, generator=generator)
    hits = accepted(
        P.expand(TRIALS, -1), Q.expand(TRIALS, -1), drafts, torch.rand(TRIALS, generator=generator), lenience
    )
    chance = float(overlap(P, Q, lenience))
    assert abs(coins_off(float(hits.sum()), TRIALS * chance, TRIALS * chance * (1 - chance))) < 4


def test_rejection_sampling_accepts_one_of_m() -> None:
    """Appendix A.2: sum of p(x) min q/p, which is the least ratio, and never more than alpha."""
    by_sum = float((P * (Q / P).amin(-1, keepdim=True)).sum())
    assert float(rejection_sampling(P, Q)) == pytest.approx(by_sum) == pytest.approx(0.4 / 0.6)
    assert float(rejection_sampling(P, P)) == pytest.approx(1.0)
    # Where p is 0 nothing is asked of q.
    assert float(rejection_sampling(torch.tensor([[0.5, 0.5, 0.0]]), torch.tensor([[0.25, 0.25, 0.5]]))) == 0.5
    random = torch.Generator().manual_seed(2)
    p, q = (torch.softmax(torch.randn(50, 20, generator=random), -1) for _ in range(2))
    assert bool((rejection_sampling(p, q) <= overlap(p, q) + 1e-6).all())


def test_greedy_lenience_compares_with_the_likeliest() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.2]]).log()
    found = [bool(accepted_greedily(logits, torch.tensor([draft]), 0.5)) for draft in range(3)]
    assert found == [True, True, False]


def test_the_error_is_that_of_texts() -> None:
    # Texts of one token each: the error of a mean of independent values.
    values = [0.0, 1.0, 1.0, 0.0]
    assert clustered(values, [1] * 4) == pytest.approx((0.5, math.sqrt(1 / 3 / 4)))
    # The same tokens ten times in each text tell no more.
    assert clustered([10 * value for value in values], [10] * 4) == pytest.approx((0.5, math.sqrt(1 / 3 / 4)))
    assert math.isnan(clustered([1.0], [2]).error)


def test_a_constant_ratio_has_no_error() -> None:
    assert ratio_of_sums([2.0, 4.0, 6.0], [1.0, 2.0, 3.0]) == pytest.approx((2.0, 0.0))


@pytest.mark.parametrize("kind", [Unigram, Bigram])
def test_counts_are_a_distribution_that_leaves_nothing_out(kind: type[Unigram] | type[Bigram]) -> None:
    q = kind([[1, 2, 3, 1, 2], [2, 4]], 8).along([5, 1, 2, 7, 0], 1)
    assert q.shape == (4, 8)
    assert q.sum(-1).tolist() == pytest.approx([1.0] * 4)
    assert float(q.min()) > 0


def test_a_bigram_follows_the_newest_token() -> None:
    q = Bigram([[1, 2, 3, 1, 2]], 8).along([1, 2, 3], 1)
    assert q.argmax(-1).tolist() == [2, 3]
    assert Uniform(8).along([0, 0, 0], 1).sum(-1).tolist() == pytest.approx([1.0, 1.0])


def test_look_ups_see_nothing_but_what_came_before() -> None:
    text = [1, 2, 3, 9, 1, 2, 3, 9]
    assert Copy().along(text, 4).tolist() == [-1, -1, 3, 9]
    # The token to be foreseen is another one than what followed before.
    assert Copy().along([5, 1, 2, 3, 9, 1, 2, 7], 7).tolist() == [3]
    assert Ngrams().along(text, 4).tolist() == [-1, 2, 3, 9]
