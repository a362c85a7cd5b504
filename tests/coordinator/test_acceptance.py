"""Acceptance against its theory: the emitted tokens follow p, and drafts survive as often as they can.

The servers' part is played by a few lines of numpy with the servers' own noise, so what is
tested is `accept` and the independence of the keys. All of it repeats exactly: no test here
fails by chance; the tolerances say how unlikely the fixed seeds would be if the distribution held.
"""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import chi2

from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise, VerifyResult, accept
from paceline.noise import Purpose, make_key, uniform
from paceline.speculation_params import Rule

Table = NDArray[np.float64]  # [vocab_size, vocab_size]: next token's distribution by the last token
NUM_DRAWS = 16_384
# A token no distribution here can give: it must never be taken where the mass outside is 0.
NEVER = 99
# p and q in opposite rank order: sum min(p, q) is 0.52.
P = np.exp(0.35 * np.arange(8)) / np.exp(0.35 * np.arange(8)).sum()
Q = P[::-1].copy()


def draw(probs: NDArray[np.floating], key: int) -> int:
    """Inverts the cumulative sum, as the servers do."""
    sums = probs.astype(np.float64).cumsum()
    return int(np.searchsorted(sums, uniform(key) * sums[-1], side="right"))


def play_round(
    seed: int, start: int, last: int, target: Table, draft: Table, num_drafts: int, size: int
) -> tuple[Outcome, Proposal]:
    """One round as draft server, target server and coordinator play it; supports of the `size` likeliest."""
    tokens, supports, draft_probs, target_probs, masses, outside_tokens = [], [], [], [], [], []
    for index in range(num_drafts):
        support = np.argsort(-draft[last], kind="stable")[:size]
        support = support[draft[last][support] > 0]
        q = (draft[last][support] / draft[last][support].sum()).astype(np.float32)
        outside = target[last].copy()
        outside[support] = 0
        masses.append(float(outside.sum()))
        key = make_key(seed, start, start + index, Purpose.OUTSIDE)
        outside_tokens.append(draw(outside, key) if masses[-1] else NEVER)
        supports.append(support)
        draft_probs.append(q)
        target_probs.append(target[last][support].astype(np.float32))
        last = int(support[draw(q, make_key(seed, start, start + index, Purpose.DRAFT))])
        tokens.append(last)
    bonus = draw(target[last], make_key(seed, start, start + num_drafts, Purpose.BONUS))
    proposal = Proposal(tokens, supports, draft_probs)
    verify_result = VerifyResult([bonus], target_probs, masses, outside_tokens, rule=Rule.REJECTION)
    return accept(proposal, verify_result, RoundNoise(seed, start)), proposal


def alone(distribution: NDArray[np.float64]) -> Table:
    """A table for tokens that do not look back."""
    return np.tile(distribution, (len(distribution), 1))


def first_tokens(
    p: NDArray[np.float64], q: NDArray[np.float64], size: int, num_draws: int = NUM_DRAWS
) -> tuple[NDArray[np.int64], float]:
    """How often each token came first, and the share of drafts accepted."""
    counts, accepted = np.zeros(NEVER + 1, dtype=np.int64), 0
    target, draft = alone(p), alone(q)
    for seed in range(num_draws):
        outcome, _ = play_round(seed, 7, 0, target, draft, 1, size)
        counts[outcome.tokens[0]] += 1
        accepted += outcome.num_accepted
    return counts, accepted / num_draws


def draft_law(q: NDArray[np.float64], size: int) -> NDArray[np.float64]:
    """What is drawn from when only the `size` likeliest are kept."""
    distribution = np.zeros_like(q)
    kept = np.argsort(-q, kind="stable")[:size]
    distribution[kept] = q[kept] / q[kept].sum()
    return distribution


def total_variation(counts: NDArray[np.int64], p: NDArray[np.float64]) -> float:
    distribution = np.zeros(len(counts))
    distribution[: len(p)] = p
    return float(np.abs(counts / counts.sum() - distribution).sum() / 2)


WORKED_P, WORKED_Q = np.array([0.6, 0.3, 0.1]), np.array([0.4, 0.5, 0.1])
A, B, C = 0, 1, 2


def judge_worked(token: int, seed: int) -> Outcome:
    """The worked example's verify result on one draft."""
    proposal = Proposal([token], [np.arange(3)], [WORKED_Q.astype(np.float32)])
    verify_result = VerifyResult([C], [WORKED_P.astype(np.float32)], [0.0], [NEVER], rule=Rule.REJECTION)
    return accept(proposal, verify_result, RoundNoise(seed, 5))


def test_worked_example_accepts_b_with_chance_point_six_and_recovers_a_alone() -> None:
    for seed in range(2000):
        outcome = judge_worked(B, seed)
        if RoundNoise(seed, 5).uniform(0, Purpose.ACCEPT) < 0.6:
            assert (outcome.tokens, outcome.last_origin) == ([B, C], Origin.BONUS)
        else:
            assert (outcome.tokens, outcome.last_origin) == ([A], Origin.RECOVERED)


@pytest.mark.parametrize("token", [A, C])
def test_worked_example_always_accepts_what_the_target_likes_as_well(token: int) -> None:
    assert all(judge_worked(token, seed).num_accepted == 1 for seed in range(2000))


@pytest.mark.parametrize("size", [pytest.param(8, id="full support"), pytest.param(3, id="truncated support")])
def test_first_token_follows_p_and_acceptance_rate_is_the_overlap(size: int) -> None:
    counts, rate = first_tokens(P, Q, size)
    # With 16,384 draws over 8 ids the distance is 0.008 on average, with a deviation of 0.002.
    assert total_variation(counts, P) < 0.016
    alpha = np.minimum(P, draft_law(Q, size)).sum()
    assert abs(rate - alpha) < 3 * np.sqrt(alpha * (1 - alpha) / NUM_DRAWS)


def test_empty_complement_never_gives_the_outside_token() -> None:
    p = np.array([0.7, 0.3, 0, 0])
    counts, _ = first_tokens(p, np.array([0.2, 0.8, 0, 0]), size=2)
    assert counts[NEVER] == 0
    assert total_variation(counts, p) < 0.013


def test_rejection_made_by_rounding_alone_accepts() -> None:
    # p a hair below q everywhere: a rejection leaves nothing to recover from.
    q = np.array([0.5, 0.25, 0.25], dtype=np.float32)
    p = q * np.float32(0.999)
    rejected = [s for s in range(20_000) if RoundNoise(s, 3).uniform(0, Purpose.ACCEPT) * q[0] >= p[0]]
    assert rejected, "no seed here would reject"
    for seed in rejected:
        proposal = Proposal([0], [np.arange(3)], [q])
        outcome = accept(proposal, VerifyResult([2], [p], [0.0], [NEVER], rule=Rule.REJECTION), RoundNoise(seed, 3))
        assert outcome == Outcome([0, 2], 1, Origin.BONUS)


def test_tokens_the_target_gives_no_probability_never_come_out() -> None:
    # The draft likes 1 and 5 best, and the target bans both, one inside the support and one outside.
    p = np.array([0.3, 0, 0.2, 0.1, 0.25, 0, 0.15, 0])
    q = np.array([0.05, 0.5, 0.15, 0.1, 0.05, 0.1, 0.04, 0.01])
    num_draws = NUM_DRAWS
    counts, _ = first_tokens(p, q, size=3, num_draws=num_draws)
    assert counts[p.nonzero()].sum() == num_draws
    assert total_variation(counts, p) < 0.016


def test_rounds_of_two_give_the_joint_distribution_of_two_tokens() -> None:
    rng = np.random.default_rng(5)
    target, draft = rng.dirichlet(np.ones(4), 4), rng.dirichlet(np.ones(4), 4)
    counts, num_draws, lengths = np.zeros((4, 4)), 10_000, set()
    for seed in range(num_draws):
        tokens = [2]
        while len(tokens) < 3:
            outcome, _ = play_round(seed, len(tokens), tokens[-1], target, draft, 2, size=3)
            tokens += outcome.tokens
            lengths.add(len(outcome.tokens))
        counts[tokens[1], tokens[2]] += 1
    expected = num_draws * target[2][:, None] * target
    statistic = ((counts - expected) ** 2 / expected).sum()
    assert lengths == {1, 2, 3}, "every way through a round is taken"
    assert statistic < chi2.isf(1e-4, expected.size - 1)


def test_a_discarded_draft_leaves_no_trace_in_the_next_round() -> None:
    # The same position is drafted in two rounds; were its noise the same, the second draft would repeat the first.
    target, draft = alone(np.array([1.0, 0, 0, 0])), alone(np.full(4, 0.25))
    pairs = np.zeros((4, 4))
    for seed in range(8000):
        _, first = play_round(seed, 10, 0, target, draft, 2, size=4)
        _, second = play_round(seed, 11, 0, target, draft, 2, size=4)
        pairs[first.tokens[1], second.tokens[0]] += 1
    assert ((pairs - 500) ** 2 / 500).sum() < chi2.isf(1e-4, 15)


@given(st.lists(st.integers(0, 3), max_size=8), st.data())
def test_match_emits_the_targets_own_chain(drafts: list[int], data: st.DataObject) -> None:
    chain = data.draw(st.lists(st.integers(0, 3), min_size=len(drafts) + 1, max_size=len(drafts) + 1))
    outcome = accept(Proposal(drafts), VerifyResult(chain), RoundNoise(0, 0))
    agreeing = next((i for i, token in enumerate(drafts) if token != chain[i]), len(drafts))
    assert outcome.num_accepted == agreeing
    assert outcome.tokens == chain[: agreeing + 1]


@pytest.mark.parametrize("rule", Rule)
def test_round_without_drafts_emits_the_targets_token_alone(rule: Rule) -> None:
    assert accept(Proposal(), VerifyResult([4], rule=rule), RoundNoise(0, 0)) == Outcome([4], 0, Origin.TARGET)
