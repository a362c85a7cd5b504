"""Drafters, which make proposals. Each drafting method has its own file; a new method is a new file here.

A drafter belongs to one generation. It may propose fewer tokens than asked, or none: then the round is plain decoding.
Proposals never change the output's distribution, if each token that a drafter calls sampled was sampled from the
probabilities that the drafter gives.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

from coordinator.acceptance import Proposal
from coordinator.context import Context


class Drafter(Protocol):
    """One generation's drafter, as proposers use it."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        """Proposes up to `num_draft_tokens` tokens after the context."""
        ...

    def truncate(self, length: int) -> None:
        """Drops cached tokens from position `length` on. Only the first `length` tokens of the context are kept."""
        ...

    def release(self) -> None:
        """The generation has ended."""
        ...


class NoDrafter:
    """Never proposes: plain decoding."""

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        return Proposal()

    def truncate(self, length: int) -> None:
        pass

    def release(self) -> None:
        pass


class Rates:
    """A share for each kind of case. Recent cases count more."""

    def __init__(self, before: Callable[[Hashable], float], before_weight: float, memory: float) -> None:
        """`before`: the share before any case, which counts as `before_weight` cases.

        `memory`: factor on the weight of older cases of the same kind, for each new one.
        """
        self._before = before
        self._before_weight = before_weight
        self._memory = memory
        # Kind -> weight of its cases, and of those in which it happened.
        self._seen: dict[Hashable, tuple[float, float]] = {}

    def __getitem__(self, kind: Hashable) -> float:
        cases, happened = self._seen.get(kind, (0.0, 0.0))
        return (self._before_weight * self._before(kind) + happened) / (self._before_weight + cases)

    def learn(self, kind: Hashable, has_happened: bool) -> None:
        cases, happened = self._seen.get(kind, (0.0, 0.0))
        self._seen[kind] = self._memory * cases + 1, self._memory * happened + has_happened
