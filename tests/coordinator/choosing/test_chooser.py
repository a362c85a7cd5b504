"""The goodput rule in a world of known alpha and costs: simulated, since true ones can't be set."""

import random
from dataclasses import dataclass, field

import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, Verdict
from coordinator.context import Context
from coordinator.draft_length import DraftLengthRule
from coordinator.draft_length.active_generations import ActiveGenerations
from coordinator.draft_length.adaptive import GoodputLength
from coordinator.draft_length.costs import Costs
from coordinator.draft_length.estimates import LinearCost
from coordinator.draft_length.factory import DraftLengthRules
from coordinator.round import Round
from paceline.sampling import Bounds, Drafter, EntropyAdaptive, SpeculationParams
from paceline.theory import best_k, speedup
from tests.coordinator.contexts import make_context


@dataclass
class World:
    """Seconds of a draft step, of a verify, and of reading a token; the chance that a decided draft is accepted."""

    alpha: float
    draft_s: float
    verify_s: float = 0.02
    read_s: float = 0.0
    noise: float = 0.1
    now_s: float = field(default=0.0, init=False)
    # Whose context the drafter last read, and how much of it.
    _reads: tuple[Context | None, int] = field(default=(None, 0), init=False)

    def play(
        self, length: DraftLengthRule, rounds: int, coin: random.Random, context: Context | None = None
    ) -> tuple[int, float]:
        """Tokens and seconds of so many rounds."""
        context = context or make_context([0], max_tokens=99_000)
        num_before, began_s = len(context), self.now_s
        for _ in range(rounds):
            k = length.choose(context)
            accepted = next((i for i in range(k) if coin.random() >= self.alpha), k)
            num_tail_tokens = self._read(context) if k > 0 and self.read_s > 0 else 0
            propose_s = num_tail_tokens * self.read_s + k * self._about(self.draft_s, coin)
            proposed_s = self.now_s + propose_s
            ended_s = proposed_s + self._about(self.verify_s, coin)
            outcome = Outcome([0] * (accepted + 1), accepted, Origin.BONUS)
            proposal = Proposal([0] * k, num_tail_tokens=num_tail_tokens)
            length.learn(Round(proposal, Verdict([0]), outcome, self.now_s, proposed_s, ended_s))
            context.extend(outcome)
            self.now_s = ended_s
        return len(context) - num_before, self.now_s - began_s

    def _read(self, context: Context) -> int:
        """How many tokens that was."""
        num_read = self._reads[1] if self._reads[0] is context else 0
        self._reads = context, len(context)
        return len(context) - num_read

    def _about(self, seconds: float, coin: random.Random) -> float:
        return seconds * coin.uniform(1 - self.noise, 1 + self.noise)


@pytest.mark.parametrize("alpha", [0.2, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("c", [0.02, 0.2, 0.8])
@pytest.mark.parametrize("read_s", [0.0, 0.0001])
def test_speed_comes_close_to_that_of_the_best_fixed_k(alpha: float, c: float, read_s: float) -> None:
    world, costs, coin = World(alpha, draft_s=c * 0.02, read_s=read_s), Costs(ActiveGenerations()), random.Random(1)
    world.play(GoodputLength(Bounds(0, 8), costs), 200, coin)
    tokens, seconds = world.play(GoodputLength(Bounds(0, 8), costs), 400, coin)
    best = speedup(alpha, best_k(alpha, c, longest=8), c) / world.verify_s
    # A tenth for probing, and for the luck of 400 rounds.
    assert tokens / seconds > 0.9 * best


@pytest.mark.parametrize("read_s", [0.0, 0.0001])
def test_a_request_that_fell_to_zero_comes_back(read_s: float) -> None:
    costs, coin, context = Costs(ActiveGenerations()), random.Random(2), make_context([0], max_tokens=99_000)
    length = GoodputLength(Bounds(0, 8), costs)
    world = World(alpha=0.05, draft_s=0.016, read_s=read_s)
    world.play(length, 300, coin, context)
    assert length.choose(context) == 0
    world.alpha, world.draft_s = 0.97, 0.002
    world.play(length, 3000, coin, context)
    assert length.choose(context) > 0


def test_another_request_finds_out_that_drafting_pays_again() -> None:
    world, costs, coin = World(alpha=0.5, draft_s=0.02, read_s=0.0001), Costs(ActiveGenerations()), random.Random(7)
    world.play(GoodputLength(Bounds(0, 8), costs), 200, coin)
    world.draft_s = 0.002
    for _ in range(40):
        context, length = make_context([0] * 100), GoodputLength(Bounds(0, 8), costs)
        world.play(length, 40, coin, context)
    assert length.choose(context) > 0


def test_a_long_prompt_is_not_read_for_a_short_answer() -> None:
    world, costs, coin = World(alpha=0.8, draft_s=0.002, read_s=0.001), Costs(ActiveGenerations()), random.Random(8)
    # Until costs are known, prompts are read.
    for _ in range(3):
        world.play(GoodputLength(Bounds(0, 8), costs), 50, coin, make_context([0] * 100))
    short = GoodputLength(Bounds(0, 8), costs)
    assert short.choose(make_context([0] * 2_000, max_tokens=50)) == 0
    assert short.choose(make_context([0] * 2_000, max_tokens=10_000)) == 0
    assert short.choose(make_context([0] * 100, max_tokens=50)) > 0
    long = make_context([0] * 2_000, max_tokens=10_000)
    tokens, _ = world.play(short, 400, coin, long)
    # An answer that goes on is likely to go on.
    assert tokens > 800
    assert short.choose(long) > 0


def test_probing_takes_little_time() -> None:
    world, costs, coin = World(alpha=0.3, draft_s=0.02, read_s=0.001), Costs(ActiveGenerations()), random.Random(9)
    world.play(GoodputLength(Bounds(0, 8), costs), 200, coin)
    tokens, seconds = 0, 0.0
    for _ in range(60):
        num_tokens, took_s = world.play(GoodputLength(Bounds(0, 8), costs), 80, coin, make_context([0] * 300))
        tokens, seconds = tokens + num_tokens, seconds + took_s
    assert tokens / seconds > 0.97 / world.verify_s


class Crowd:
    """Sequences in one forward, which takes longer for every draft in it."""

    def __init__(self, alphas: list[float], coin: random.Random) -> None:
        self.alphas = alphas
        self.coin = coin
        self.step_s, self.each_draft_s, self.now_s = 0.02, 0.002, 0.0
        self.active = ActiveGenerations(clock=lambda: self.now_s)
        self.costs = Costs(self.active)
        self.context = make_context([0], max_tokens=99_000)
        self.lengths = [self._join() for _ in alphas]

    @property
    def plain(self) -> float:
        """Tokens a second without drafts."""
        return len(self.alphas) / self.step_s

    def play(self, rounds: int) -> float:
        """Tokens a second."""
        tokens, began_s = 0, self.now_s
        for _ in range(rounds):
            ks = [length.choose(self.context) for length in self.lengths]
            ended_s = self.now_s + (self.step_s + self.each_draft_s * sum(ks)) * self.coin.uniform(0.9, 1.1)
            for k, alpha, length in zip(ks, self.alphas, self.lengths, strict=True):
                accepted = next((i for i in range(k) if self.coin.random() >= alpha), k)
                outcome = Outcome([0] * (accepted + 1), accepted, Origin.BONUS)
                length.learn(Round(Proposal([0] * k), Verdict([0]), outcome, self.now_s, self.now_s, ended_s))
                tokens += accepted + 1
            self.now_s = ended_s
        return tokens / (self.now_s - began_s)

    def leave_alone(self, alpha: float) -> None:
        for length in self.lengths:
            self.active.leave(length)
        self.alphas, self.lengths = [alpha], [self._join()]

    def _join(self) -> GoodputLength:
        length = GoodputLength(Bounds(0, 8), self.costs)
        self.active.join(length)
        self.active.has_read(length)
        return length


ALPHAS = [0.3, 0.4, 0.45, 0.5, 0.5, 0.55, 0.6, 0.7]


def test_sequences_in_one_forward_count_what_all_their_drafts_cost() -> None:
    crowd = Crowd(ALPHAS, random.Random(10))
    crowd.play(100)
    assert crowd.play(400) > 0.97 * crowd.plain
    # One at a time drafts pay: others' are not there any more.
    crowd.leave_alone(0.9)
    assert crowd.play(1000) > 1.5 * crowd.plain


def test_a_crowd_that_fell_to_zero_tries_again_together() -> None:
    crowd = Crowd(ALPHAS, random.Random(11))
    crowd.play(300)
    assert [length.choose(crowd.context) for length in crowd.lengths] == [0] * len(ALPHAS)
    crowd.each_draft_s = 0.0002
    crowd.play(3000)
    assert crowd.play(100) > 1.2 * crowd.plain


def test_rounds_beside_a_prompt_are_no_measure_of_others() -> None:
    crowd = Crowd(ALPHAS, random.Random(12))
    crowd.play(300)
    (expected_s,), prompt = crowd.costs.rounds_s(0, is_optimistic=False), object()
    crowd.active.join(prompt)
    crowd.step_s = 0.2
    crowd.play(20)
    crowd.active.leave(prompt)
    assert crowd.costs.rounds_s(0, is_optimistic=False) == [pytest.approx(expected_s, rel=0.05)]


def test_one_long_time_is_chance_and_several_are_a_change() -> None:
    cost = LinearCost(0.0, free_start=True)
    for _ in range(100):
        cost.learn(4, 0.01)
    cost.learn(4, 0.1)
    assert cost.predict(4) < 0.012
    for _ in range(4):
        cost.learn(4, 0.1)
    assert cost.predict(4) > 0.08


def test_bounds_hold() -> None:
    for alpha in (0.05, 0.99):
        length, context = GoodputLength(Bounds(2, 3), Costs(ActiveGenerations())), make_context([0])
        coin = random.Random(3)
        for _ in range(100):
            World(alpha, draft_s=0.016).play(length, 1, coin, context)
            assert length.choose(context) in (2, 3)


def test_requests_share_what_rounds_cost() -> None:
    costs, coin = Costs(ActiveGenerations()), random.Random(4)
    World(alpha=0.1, draft_s=0.02).play(GoodputLength(Bounds(0, 8), costs), 200, coin)
    assert GoodputLength(Bounds(0, 8), costs).choose(make_context([0])) == 0


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
    length = DraftLengthRules(ActiveGenerations()).make(
        SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=wanted)
    )
    World(alpha=0.1, draft_s=0.02).play(length, 20, random.Random(6))
    assert length.choose(make_context([0])) == chosen
