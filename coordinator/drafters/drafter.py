"""The `Drafter` protocol, and how the coordinator makes the drafters of a request.

A drafter serves one generation. It may propose fewer tokens than asked, or none; then the round is plain decoding.
Proposals never change the output's distribution, provided that tokens with probabilities were drawn from them.
"""

import importlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape
from coordinator.drafters.token_index import RecentAnswers
from coordinator.remote.link import Link
from paceline.speculation import Drafter as DrafterName


class Drafter(Protocol):
    """One generation's drafter. Subclasses need `propose` alone; the others are for drafters that keep a cache."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        """Proposes up to `num_draft_tokens` tokens to follow the context."""
        ...

    def truncate(self, length: int) -> None:
        """Drops cached tokens from position `length` on. Called after every round."""
        return None

    def release(self) -> None:
        """Frees what the drafter holds. Called once, when the generation ends."""
        return None


class LookupDrafter(Drafter, Protocol):
    """A drafter that looks its tokens up, at no cost, and knows what kind of match each comes from.

    The adaptive policy learns an acceptance rate for each kind.
    """

    name: str
    # Replaces the upper bound of an adaptive number of draft tokens.
    max_draft_tokens: int | None = None

    async def candidates(self, context: Context, num_tokens: int) -> Sequence[Hashable]:
        """Returns the kinds of the next tokens, at most `num_tokens`."""
        ...

    def take_hits(self) -> Sequence[tuple[Hashable, bool]]:
        """Returns the kind of each prediction since the last call, and whether it was right."""
        ...


class ModelDrafter(Drafter, Protocol):
    """A drafter whose tokens take time: a draft model, or custom code."""

    name: str
    # Proposes at least one token while available, and stops when its confidence falls below `least_confidence`.
    has_confidence: bool

    async def propose(self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0) -> Proposal:
        """`least_confidence`: stop after the token at which the joint confidence falls below this."""
        ...

    def absence(self, context: Context) -> str:
        """Explains to a user why the drafter is unavailable; empty if it is available."""
        return ""

    def num_cached(self, context: Context) -> int:
        """Counts the context tokens that need not be read again."""
        return len(context)


class TimedDrafter(ModelDrafter):
    """Presents a plain drafter to the adaptive policy, which then learns its times and acceptance rates."""

    has_confidence = False

    def __init__(self, drafter: Drafter, name: str) -> None:
        self._drafter = drafter
        self.name = name

    async def propose(self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0) -> Proposal:
        return await self._drafter.propose(context, num_draft_tokens)

    def truncate(self, length: int) -> None:
        self._drafter.truncate(length)

    def release(self) -> None:
        self._drafter.release()


class NoDrafter(Drafter):
    """Never proposes: plain decoding."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        return Proposal()


@dataclass(frozen=True, slots=True)
class Resources:
    """What the drafters of a coordinator draw on.

    draft: link to the draft server; None without one.
    custom: factory given by --custom-drafter; None without one.
    recent: recent answers to look up; None to look up none.
    ngram_shape: shape of all n-gram tables.
    deadline: learned from all drafts of the draft server.
    """

    draft: Link | None = None
    custom: Callable[[Request], Drafter] | None = None
    recent: RecentAnswers | None = None
    ngram_shape: NgramShape = DEFAULT_SHAPE
    deadline: DraftDeadline = field(default_factory=DraftDeadline)


@dataclass(frozen=True, slots=True)
class DrafterSet:
    """The drafters among which the adaptive policy chooses in each round.

    standby: propose only while the model is unavailable.
    """

    lookups: Sequence[LookupDrafter] = ()
    model: ModelDrafter | None = None
    standby: Sequence[LookupDrafter] = ()


@dataclass(frozen=True, slots=True)
class Factory:
    """Makes a request's drafters.

    fixed: the drafter for a fixed number of draft tokens.
    adaptive: the drafters for an adaptive number; None for the same drafter.
    missing: says what a coordinator with these resources lacks for it; empty if nothing.
    """

    fixed: Callable[[Resources, Request], Drafter]
    adaptive: Callable[[Resources, Request], DrafterSet] | None = None
    missing: Callable[[Resources], str] = lambda resources: ""

    def make_set(self, resources: Resources, request: Request) -> DrafterSet:
        if self.adaptive is not None:
            return self.adaptive(resources, request)
        name = request.speculation.drafter.value
        return DrafterSet(model=TimedDrafter(self.fixed(resources, request), name))


def load_factory(name: DrafterName) -> Factory:
    """Returns the FACTORY of the module with the drafter's name."""
    factory: Factory = importlib.import_module(f"coordinator.drafters.{name.value}").FACTORY
    return factory


class Rates:
    """Rates of success by kind of case. Recent cases count more."""

    def __init__(self, prior: Callable[[Hashable], float], prior_weight: float, decay: float) -> None:
        """`prior`: the rate of a kind before any case, worth `prior_weight` cases; `decay`: decay per new case."""
        self._prior = prior
        self._prior_weight = prior_weight
        self._decay = decay
        # Kind -> weight of its cases, and of its successes.
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def __getitem__(self, kind: Hashable) -> float:
        cases, successes = self._seen.get(kind, (0.0, 0.0))
        return (self._prior_weight * self._prior(kind) + successes) / (self._prior_weight + cases)

    def learn(self, kind: Hashable, is_success: bool) -> None:
        cases, successes = self._seen.get(kind, (0.0, 0.0))
        self._seen[kind] = self._decay * cases + 1, self._decay * successes + is_success
