"""The goodput rule in a world of known alpha and costs: simulated, since true ones can't be set."""

import random
from dataclasses import dataclass

import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, Verdict
from coordinator.lengths import LengthRule
from coordinator.lengths.choice import make_length
from coordinator.lengths.costs import Costs, LinearCost
from coordinator.lengths.goodput import GoodputLength
from coordinator.rounds import Round
from paceline.sampling import Bounds, EntropyAdaptive, SpeculationParams
from paceline.theory import best_k, speedup


@dataclass
class World:
    """Seconds of a draft step and of a verify; the chance that a decided draft is accepted."""

    alpha: float
    draft_s: float
    verify_s: float = 0.02
    noise: float = 0.1

    def play(self, length: LengthRule, rounds: int, coin: random.Random) -> tuple[int, float]:
        """Tokens and seconds of so many rounds."""
        tokens, seconds = 0, 0.0
        for _ in range(rounds):
            k = length.choose()
            accepted = next((i for i in range(k) if coin.random() >= self.alpha), k)
            propose_s = k * self.draft_s * coin.uniform(1 - self.noise, 1 + self.noise)
            verify_s = self.verify_s * coin.uniform(1 - self.noise, 1 + self.noise)
            outcome = Outcome([0] * (accepted + 1), accepted, Origin.BONUS)
            length.learn(Round(Proposal([0] * k), Verdict([0]), outcome, 0.0, propose_s, propose_s + verify_s))
            tokens += accepted + 1
            seconds += propose_s + verify_s
        return tokens, seconds


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("c", [0.02, 0.2, 0.8])
def test_speed_comes_close_to_that_of_the_best_fixed_k(alpha: float, c: float) -> None:
    world, costs, coin = World(alpha, draft_s=c * 0.02), Costs(), random.Random(1)
    world.play(GoodputLength(Bounds(0, 8), costs), 200, coin)
    tokens, seconds = world.play(GoodputLength(Bounds(0, 8), costs), 400, coin)
    best = speedup(alpha, best_k(alpha, c, longest=8), c) / world.verify_s
    # A tenth for probing, and for the luck of 400 rounds.
    assert tokens / seconds > 0.9 * best


def test_a_request_that_fell_to_zero_comes_back() -> None:
    costs, coin = Costs(), random.Random(2)
    length = GoodputLength(Bounds(0, 8), costs)
    World(alpha=0.05, draft_s=0.016).play(length, 300, coin)
    assert length.choose() == 0
    World(alpha=0.97, draft_s=0.002).play(length, 3000, coin)
    assert max(length.choose() for _ in range(2)) > 0


def test_bounds_hold() -> None:
    for alpha in (0.05, 0.99):
        length = GoodputLength(Bounds(2, 3), Costs())
        coin = random.Random(3)
        for _ in range(100):
            World(alpha, draft_s=0.016).play(length, 1, coin)
            assert length.choose() in (2, 3)


def test_requests_share_what_rounds_cost() -> None:
    costs, coin = Costs(), random.Random(4)
    World(alpha=0.1, draft_s=0.02).play(GoodputLength(Bounds(0, 8), costs), 200, coin)
    assert GoodputLength(Bounds(0, 8), costs).choose() == 0


def test_cost_is_a_line_and_outliers_do_not_bend_it() -> None:
    cost, coin = LinearCost(guessed_slope=0.0, free_start=False), random.Random(5)
    for index in range(400):
        k = coin.randint(0, 8)
        cost.learn(k, 100.0 if index % 50 == 49 else 0.02 + 0.005 * k)
    assert cost.predict(0) == pytest.approx(0.02, abs=0.008)
    assert cost.predict(8) - cost.predict(0) == pytest.approx(0.04, abs=0.012)


@pytest.mark.parametrize(
    ("wanted", "chosen"), [(0, 0), (5, 5), (EntropyAdaptive(Bounds(1, 6)), 6)], ids=["none", "fixed", "entropy"]
)
def test_other_lengths_do_not_depend_on_the_past(wanted: int | EntropyAdaptive, chosen: int) -> None:
    length = make_length(SpeculationParams(num_draft_tokens=wanted), Costs())
    World(alpha=0.1, draft_s=0.02).play(length, 20, random.Random(6))
    assert length.choose() == chosen
