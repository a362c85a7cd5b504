"""The `Drafter` protocol and the factories of drafters.

Proposals never change the output's distribution if tokens with probabilities were sampled from them.
"""

import importlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.bets import Bets
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape
from coordinator.drafters.token_index import RecentAnswers
from coordinator.remote.link import UNKNOWN_TIMES, ForwardTimes
from coordinator.remote.place import DraftPlace, Place
from coordinator.remote.pool import DraftPool, TargetPool
from paceline.speculation import Drafter as DrafterName


class Drafter(Protocol):
    """One generation's drafter. Only one with a cache needs more than `propose`."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        """Proposes up to `num_draft_tokens` tokens."""
        ...

    def truncate(self, length: int) -> None:
        """Drops cached tokens from position `length` on, after every round."""
        return None

    def release(self) -> None:
        return None


class LookupDrafter(Drafter, Protocol):
    """Drafts at no cost. The adaptive policy learns an acceptance rate per kind of match."""

    name: str
    # Overrides the maximum of an adaptive length.
    max_draft_tokens: int | None = None

    async def candidates(self, context: Context, num_tokens: int) -> Sequence[Hashable]:
        """Returns the kinds of the next tokens."""
        ...

    def take_hits(self) -> Sequence[tuple[Hashable, bool]]:
        """Returns kind and correctness of predictions since the last call."""
        ...


class ModelDrafter(Drafter, Protocol):
    """Drafts at a cost."""

    name: str
    # Whether `propose` respects `least_confidence` and `after`; it then proposes at least one token while available.
    has_confidence: bool

    @property
    def num_at_once(self) -> int:
        """Returns how many tokens one forward drafts; all of a proposal if more than one."""
        return 1

    @property
    def stops_early(self) -> bool:
        """Returns whether a stop at `least_confidence` saves the forwards of the drafts after it."""
        return False

    async def propose(
        self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        """Drafts what follows the context and the undecided tokens `after`.

        Stops after the token at which joint confidence falls below `least_confidence`.
        """
        ...

    @property
    def times(self) -> ForwardTimes:
        """Returns the seconds of its forwards by their number of tokens."""
        return UNKNOWN_TIMES

    def absence(self, context: Context) -> str:
        """Returns a reason for users; empty if available."""
        return ""

    def num_cached(self, context: Context) -> int:
        return len(context)


class TimedDrafter(ModelDrafter):
    """Adapts a plain drafter to the adaptive policy."""

    has_confidence = False

    def __init__(self, drafter: Drafter, name: str) -> None:
        self._drafter = drafter
        self.name = name

    async def propose(
        self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        return await self._drafter.propose(context, num_draft_tokens)

    def truncate(self, length: int) -> None:
        self._drafter.truncate(length)

    def release(self) -> None:
        self._drafter.release()


class NoDrafter(Drafter):
    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        return Proposal()


@dataclass(frozen=True, slots=True)
class Resources:
    draft: DraftPool | None = None
    custom: Callable[[Request], Drafter] | None = None
    recent: RecentAnswers | None = None
    ngram_shape: NgramShape = DEFAULT_SHAPE
    deadline: DraftDeadline = field(default_factory=DraftDeadline)
    # Without targets nothing is drafted ahead: what shares a device with them is not known.
    targets: TargetPool | None = None
    bets: Bets = field(default_factory=Bets)

    def draft_place(self, request: Request) -> DraftPlace | None:
        """Returns a place for a request's draft; None while there is no draft server."""
        return Place(self.draft, request, request.prompt) if self.draft is not None and self.draft.members else None


@dataclass(frozen=True, slots=True)
class DrafterSet:
    """`standby` proposes only while `model` is unavailable."""

    lookups: Sequence[LookupDrafter] = ()
    model: ModelDrafter | None = None
    standby: Sequence[LookupDrafter] = ()


@dataclass(frozen=True, slots=True)
class Factory:
    """Makes a request's drafters.

    fixed, adaptive: by kind of draft length; adaptive defaults to the fixed drafter.
    missing: returns what the coordinator lacks, if anything.
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
    factory: Factory = importlib.import_module(f"coordinator.drafters.{name.value}").FACTORY
    return factory
