"""The adaptive policy leaves the target's distribution as it is, whatever it drops.

It drops drafts that are not worth their place in the target's forward pass. A drawn token may be dropped only because of the
tokens before it: dropping it for its own value would make unlikely tokens rarer.
"""

from collections.abc import Coroutine, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from coordinator.acceptance import Outcome, Proposal, VerifyResult
from coordinator.admission import ActiveGenerations
from coordinator.context import Context
from coordinator.drafters.drafter import DrafterSet, ModelDrafter
from coordinator.policy.adaptive import AdaptivePolicy
from coordinator.policy.costs import CostModel
from coordinator.policy.experience import LEAST_CONFIDENCE, Experience
from coordinator.policy.source import Source
from coordinator.remote.server_load import ForwardTimes
from coordinator.reports import DraftReport
from coordinator.stats import Round
from paceline.sampling_params import SamplingParams
from paceline.serving.propose_job import ProposeSpec, Support
from paceline.speculation_params import Bounds
from tests.coordinator.contexts import make_context
from tests.distribution.test_planted_bugs import LIMIT, TABLES, least_p_value
from tests.distribution.toy_rounds import Generation, Rounds, Toy

pytestmark = pytest.mark.slow

# The policy learns from each set before the next.
NUM_SETS, SET_SIZE = 60, 50
VERIFY_S, ROW_S, DRAFT_S = 0.02, 0.008, 0.0005
TOY = Toy(*TABLES, SamplingParams(max_tokens=5, temperature=1.0), support=Support(64, 1.0), num_tokens=5)


def now(coroutine: Coroutine[Any, Any, Proposal]) -> Proposal:
    """Runs a coroutine that waits for nothing."""
    with pytest.raises(StopIteration) as done:
        coroutine.send(None)
    proposal: Proposal = done.value.value
    return proposal


class ToyModel(ModelDrafter):
    """Drafts as many as it is asked for, so that there is something to drop."""

    name = "model"
    has_confidence, stops_early = True, True
    times = ForwardTimes([(1, DRAFT_S), (2, DRAFT_S)])

    def __init__(self, rounds: Rounds, generation: Generation) -> None:
        self._rounds, self._generation = rounds, generation

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        toy = self._rounds.toy
        spec = ProposeSpec(num_draft_tokens, toy.draft_mode, toy.support, None, LEAST_CONFIDENCE)
        job = self._rounds.make_job(self._generation, spec)
        self._rounds.run([job], toy.draft, self._rounds.draft_sampler())
        result = job.result
        report = DraftReport(drafter=self.name, confidences=result.confidences, num_tail_tokens=1)
        return Proposal(result.tokens, result.supports, result.support_probs, report)


class AdaptiveRounds(Rounds):
    """Each generation's policy proposes. The target's rows are so expensive that some drafts are dropped."""

    policy: type[AdaptivePolicy] = AdaptivePolicy

    def __init__(self, toy: Toy) -> None:
        super().__init__(toy)
        times = ForwardTimes([(1, VERIFY_S), (2, VERIFY_S + ROW_S)])
        self._experience = Experience(CostModel(ActiveGenerations(), lambda: times))
        self._plays: dict[Generation, tuple[Context, AdaptivePolicy]] = {}
        # When each generation's newest round was over.
        self._ended_s: dict[Generation, float] = {}
        self.num_dropped, self.num_kept = 0, 0

    def open(self, seed: int) -> Generation:
        generation = super().open(seed)
        drafters = DrafterSet([], [ToyModel(self, generation)])
        policy = self.policy(drafters, Bounds(), self._experience, is_greedy=False)
        self._plays[generation] = make_context(list(self.toy.prompt), self.toy.num_tokens), policy
        return generation

    def propose(self, generations: list[Generation]) -> list[Proposal]:
        found = []
        for generation in generations:
            context, policy = self._plays[generation]
            proposal = now(policy.propose(context))
            self.num_kept += len(proposal)
            self.num_dropped += len(proposal.report.confidences) - len(proposal)
            found.append(proposal)
        return found

    def decide(self, generation: Generation, proposal: Proposal, verify_result: VerifyResult) -> Outcome:
        outcome = super().decide(generation, proposal, verify_result)
        context, policy = self._plays[generation]
        context.extend(outcome)
        started_s = self._ended_s.get(generation, 0.0)
        proposed_s = started_s + DRAFT_S * len(proposal.report.confidences)
        self._ended_s[generation] = proposed_s + VERIFY_S + ROW_S * len(proposal)
        policy.learn(Round(proposal, verify_result, outcome, started_s, proposed_s, self._ended_s[generation]))
        return outcome


class DropsForItself(AdaptivePolicy):
    """Keeps drawn tokens as greedy ones: as many as gain, their own probabilities known."""

    def _trimmed(self, source: Source, proposal: Proposal, num_looked_up: int) -> Proposal:
        kept = super()._trimmed(source, replace(proposal, supports=[], support_probs=[]), num_looked_up)
        num = len(kept)
        return replace(kept, supports=proposal.supports[:num], support_probs=proposal.support_probs[:num])


class PricesForItself(AdaptivePolicy):
    """Takes a round for longer if its last drawn token is an unlikely one."""

    def _num_drawn_kept(self, source: Source, num_before: int, chance: float, confidences: Sequence[float]) -> int:
        rounds = self._rounds

        def verify_s(num_drafts: float) -> float:
            is_likely = num_drafts <= num_before or confidences[int(num_drafts) - num_before - 1] > 0.3
            return rounds.verify_s(num_drafts) + (0 if is_likely else VERIFY_S)

        self._rounds = SimpleNamespace(verify_s=verify_s)  # type: ignore[assignment]
        num = super()._num_drawn_kept(source, num_before, chance, confidences)
        self._rounds = rounds
        return num


def play(rounds: AdaptiveRounds) -> float:
    starts = range(0, NUM_SETS * SET_SIZE, SET_SIZE)
    tokens = np.concatenate([rounds.play(range(start, start + SET_SIZE)) for start in starts])
    assert min(rounds.num_dropped, rounds.num_kept) > len(tokens) / 4, (rounds.num_dropped, rounds.num_kept)
    return least_p_value(rounds.toy, tokens)


def test_output_follows_the_targets_distribution_whatever_is_dropped() -> None:
    assert play(AdaptiveRounds(TOY)) > LIMIT


@pytest.mark.parametrize("planted", [DropsForItself, PricesForItself])
def test_a_drawn_token_dropped_for_what_it_is_shows(planted: type[AdaptivePolicy]) -> None:
    rounds = AdaptiveRounds(TOY)
    rounds.policy = planted
    assert play(rounds) < LIMIT
