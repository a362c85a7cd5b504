"""The `Drafter` protocol and the factories of drafters.

Proposals never change the output's distribution if tokens with probabilities were sampled from them.
"""

import importlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ahead_stats import AheadStats
from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape
from coordinator.drafters.token_index import SuffixCache
from coordinator.remote.placement import Placement
from coordinator.remote.pool import Pool
from coordinator.remote.server_load import UNKNOWN_TIMES, ForwardTimes
from coordinator.request import Request
from paceline.speculation_params import Drafter as DrafterName

# Prior chance that a looked-up token is accepted if those before it are.
FIRST_LOOKUP_RATE = 0.6


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

    @staticmethod
    def prior(kind: Hashable) -> float:
        """Returns the chance that a token of this kind is accepted if those before it are, while none was seen."""
        return FIRST_LOOKUP_RATE


class ModelDrafter(Drafter, Protocol):
    """Drafts at a cost."""

    name: str
    # The model's name, if it has one.
    draft_model: str = ""
    # Whether `propose` respects `min_probability` and `after`; it then proposes at least one token while available.
    has_confidence: bool

    @property
    def num_at_once(self) -> int:
        """Returns how many tokens one forward pass drafts; all of a proposal if more than one."""
        return 1

    @property
    def stops_early(self) -> bool:
        """Returns whether a stop at `min_probability` saves the forward passes of the drafts after it."""
        return False

    async def propose(
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
    ) -> Proposal:
        """Drafts what follows the context and the undecided tokens `after`.

        Stops after the token at which joint confidence falls below `min_probability`.
        """
        ...

    @property
    def times(self) -> ForwardTimes:
        """Returns the seconds of its forward passes by their number of tokens."""
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
        self, context: Context, num_draft_tokens: int, min_probability: float = 0.0, after: Sequence[int] = ()
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
    draft: Pool | None = None
    custom: Callable[[Request], Drafter] | None = None
    recent: SuffixCache | None = None
    ngram_shape: NgramShape = DEFAULT_SHAPE
    # By the draft model's name.
    deadlines: dict[str, DraftDeadline] = field(default_factory=lambda: defaultdict(DraftDeadline))
    # Without targets nothing is drafted ahead: what shares a device with them is not known.
    targets: Pool | None = None
    ahead_stats: AheadStats = field(default_factory=AheadStats)

    def draft_placement(self, request: Request) -> Placement | None:
        """Returns a placement for a request's draft; None while there is no draft server for it."""
        return next(iter(self._placements(request, [request.speculation.draft_model])), None)

    def draft_placements(self, request: Request) -> list[Placement]:
        """Returns a placement at each draft model that a request may use."""
        named, models = request.speculation.draft_model, [] if self.draft is None else self.draft.models
        return self._placements(request, models if len(models) > 1 and not named else [named])

    def _placements(self, request: Request, models: Sequence[str]) -> list[Placement]:
        pool = self.draft
        if pool is None:
            return []
        there = [model for model in models if any(each.has(model) for each in pool.endpoints)]
        return [Placement(pool, request, request.prompt, model=model) for model in there]


@dataclass(frozen=True, slots=True)
class DrafterSet:
    """`standby` proposes only while no model is available."""

    lookups: Sequence[LookupDrafter] = ()
    models: Sequence[ModelDrafter] = ()
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
        return DrafterSet(models=[TimedDrafter(self.fixed(resources, request), name)])


def load_factory(name: DrafterName) -> Factory:
    factory: Factory = importlib.import_module(f"coordinator.drafters.{name.value}").FACTORY
    return factory
