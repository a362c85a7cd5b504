"""A finished round, as statistics see it, and proposers that learn."""

import time
from dataclasses import dataclass

from coordinator.acceptance import Outcome, Proposal, Verdict


@dataclass(frozen=True, slots=True)
class Round:
    """What was proposed, answered and decided, and when (seconds of `time.perf_counter`)."""

    proposal: Proposal
    verdict: Verdict
    outcome: Outcome
    started_s: float
    proposed_s: float
    verified_s: float

    @property
    def num_decided(self) -> int:
        """Drafts that were accepted or rejected: those behind a rejection were neither."""
        return min(len(self.proposal), self.outcome.num_accepted + 1)

    @property
    def propose_s(self) -> float:
        return self.proposed_s - self.started_s

    @property
    def verify_s(self) -> float:
        return self.verified_s - self.proposed_s


class RoundTimer:
    """Reads the clock between a round's steps."""

    __slots__ = ("_proposed_s", "_started_s", "_verified_s")

    def __init__(self) -> None:
        """The round starts now."""
        self._started_s = self._proposed_s = self._verified_s = time.perf_counter()

    def mark_proposed(self) -> None:
        self._proposed_s = time.perf_counter()

    def mark_verified(self) -> None:
        self._verified_s = time.perf_counter()

    def finish(self, proposal: Proposal, verdict: Verdict, outcome: Outcome) -> Round:
        return Round(proposal, verdict, outcome, self._started_s, self._proposed_s, self._verified_s)
