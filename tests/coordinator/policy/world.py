"""Worlds of known acceptance and times: simulated, since true ones can't be set."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.admission import ActiveGenerations
from coordinator.context import Context
from coordinator.drafters.drafter import DrafterSet, ModelDrafter
from coordinator.drafters.ngram import NgramDrafter
from coordinator.policy.adaptive import AdaptivePolicy
from coordinator.policy.costs import CostModel
from coordinator.policy.experience import Experience
from coordinator.remote.server_load import ForwardTimes
from coordinator.reports import DraftReport
from coordinator.stats import Round
from paceline.speculation_params import Bounds
from tests.coordinator.contexts import make_context


class Guesser(ModelDrafter):
    """A draft model whose tokens are right as often as the world says. It remembers what it has read."""

    name = "model"
    has_confidence = False

    def __init__(self, world: "World | Crowd", draft: str = "") -> None:
        self._world = world
        self.draft_model = draft
        self._num_read = 0
        self.is_away = False

    @property
    def times(self) -> ForwardTimes:
        return self._world.draft_times(self.draft_model)

    def absence(self, context: Context) -> str:
        return "away" if self.is_away else ""

    def num_cached(self, context: Context) -> int:
        return self._num_read

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        num_tail_tokens, self._num_read = len(context) - self._num_read, len(context) + num_draft_tokens - 1
        report = DraftReport(drafter="model", draft_model=self.draft_model, num_tail_tokens=num_tail_tokens)
        return Proposal([-1] * num_draft_tokens, report=report)

    def truncate(self, length: int) -> None:
        self._num_read = min(self._num_read, length)


def make_policy(world: "World | Crowd", bounds: Bounds | None = None, sources: str = "model") -> AdaptivePolicy:
    """`sources`: names with spaces between them."""
    lookups = [NgramDrafter()] if "ngram" in sources else []
    drafters = DrafterSet(lookups, [Guesser(world)] if "model" in sources else [])
    return AdaptivePolicy(drafters, bounds or Bounds(), world.experience, is_greedy=True)


def told(first_s: float, each_s: float) -> ForwardTimes:
    """What a server tells whose forward of one token takes `first_s`, and `each_s` for one more."""
    return ForwardTimes([(1, first_s), (2, first_s + each_s)])


def begin(prompt: list[int], max_tokens: int = 99_000) -> Context:
    """A context whose prompt's round is over."""
    context = make_context(prompt, max_tokens)
    context.extend(Outcome([0], 0, Origin.TARGET))
    return context


@dataclass
class World:
    """Seconds of a draft step, of a forward pass of one row, of a further row, and of reading a token; and the chance that a
    decided draft of the model is right. Texts are of zeros, unless `text` says what comes."""

    alpha: float = 0.5
    draft_s: float = 0.004
    verify_s: float = 0.02
    row_s: float = 0.0
    read_s: float = 0.0
    noise: float = 0.1
    text: list[int] = field(default_factory=list)
    # Of models with names: alpha and the seconds of a draft step.
    models: dict[str, tuple[float, float]] = field(default_factory=dict)
    now_s: float = field(default=0.0, init=False)
    active: ActiveGenerations = field(default_factory=ActiveGenerations, init=False)

    def __post_init__(self) -> None:
        self.experience = Experience(CostModel(self.active, lambda: told(self.verify_s, self.row_s)))

    async def play(
        self, policy: AdaptivePolicy, rounds: int, coin: random.Random, context: Context | None = None
    ) -> tuple[int, float]:
        """Tokens and seconds of so many rounds, or until the text is over."""
        context = context or begin([1])
        num_before, began_s = len(context), self.now_s
        for _ in range(rounds):
            if context.is_finished or (self.text and context.num_generated >= len(self.text)):
                break
            proposal = await policy.propose(context)
            by_model = proposal.report.drafter == "model" and len(proposal) > 0
            alpha, draft_s = self.model(proposal.report.draft_model)
            coming = self.text[context.num_generated :] or [0] * (len(proposal) + 1)
            accepted = 0
            for index, (drafted, token) in enumerate(zip(proposal.tokens, coming, strict=False)):
                # The same for every policy that comes by.
                luck = random.Random(context.num_generated + index).random() if self.text else coin.random()
                if not (luck < alpha if by_model else drafted == token):
                    break
                accepted += 1
            accepted = min(accepted, len(coming) - 1)
            num_tail_tokens = proposal.report.num_tail_tokens if by_model else 0
            propose_s = num_tail_tokens * self.read_s + by_model * len(proposal) * self._about(draft_s, coin)
            proposed_s = self.now_s + propose_s
            ended_s = proposed_s + self._about(self.verify_s + self.row_s * len(proposal), coin)
            outcome = Outcome(coming[: accepted + 1], accepted, Origin.BONUS)
            policy.learn(Round(proposal, VerifyResult([0]), outcome, self.now_s, proposed_s, ended_s))
            context.extend(outcome)
            policy.truncate(len(context) - 1)
            self.now_s = ended_s
        return len(context) - num_before, self.now_s - began_s

    def model(self, draft: str) -> tuple[float, float]:
        return self.models.get(draft, (self.alpha, self.draft_s))

    def draft_times(self, draft: str) -> ForwardTimes:
        _, draft_s = self.model(draft)
        return told(draft_s + self.read_s, self.read_s)

    def _about(self, seconds: float, coin: random.Random) -> float:
        return seconds * coin.uniform(1 - self.noise, 1 + self.noise)


class Crowd:
    """Sequences in one forward pass, which takes longer for every draft in it."""

    def __init__(self, alphas: list[float], coin: random.Random) -> None:
        self.alphas = alphas
        self.coin = coin
        self.step_s, self.each_draft_s, self.now_s = 0.02, 0.002, 0.0
        # That the coordinator takes between two rounds.
        self.gap_each_draft_s = 0.0
        # How many generations the step is told for.
        self.num_told = len(alphas)
        self.active = ActiveGenerations(clock=lambda: self.now_s)
        self.experience = Experience(CostModel(self.active, lambda: self._times()))
        self.context = begin([0])
        self.policies = [self._join() for _ in alphas]

    @property
    def plain(self) -> float:
        """Tokens a second without drafts."""
        return len(self.alphas) / self.step_s

    async def play(self, rounds: int) -> float:
        """Tokens a second."""
        tokens, began_s = 0, self.now_s
        for _ in range(rounds):
            proposals = [await policy.propose(self.context) for policy in self.policies]
            num_drafts = sum(map(len, proposals))
            ended_s = self.now_s + (self.step_s + self.each_draft_s * num_drafts) * self.coin.uniform(0.9, 1.1)
            for proposal, alpha, policy in zip(proposals, self.alphas, self.policies, strict=True):
                accepted = next((i for i in range(len(proposal)) if self.coin.random() >= alpha), len(proposal))
                outcome = Outcome([0] * (accepted + 1), accepted, Origin.BONUS)
                policy.learn(Round(proposal, VerifyResult([0]), outcome, self.now_s, self.now_s, ended_s))
                tokens += accepted + 1
            self.now_s = ended_s + self.gap_each_draft_s * num_drafts
        return tokens / (self.now_s - began_s)

    async def drafts(self) -> list[int]:
        """How many each proposes next."""
        return [len(await policy.propose(self.context)) for policy in self.policies]

    def _times(self) -> ForwardTimes:
        return told(0.02 - (self.num_told - 1) * self.each_draft_s, self.each_draft_s)

    def draft_times(self, draft: str) -> ForwardTimes:
        return told(1e-9, 0.0)

    def leave_alone(self, alpha: float) -> None:
        for policy in self.policies:
            self.active.leave(policy)
        # The target learns what its forward passes take now.
        self.num_told = 1
        self.alphas, self.policies = [alpha], [self._join()]

    def _join(self) -> AdaptivePolicy:
        policy = make_policy(self)
        self.active.join(policy)
        self.active.has_read(policy)
        return policy
