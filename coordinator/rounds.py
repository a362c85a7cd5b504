"""A finished round, as statistics and length rules see it."""

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

    def is_beside(self, other: "Round") -> bool:
        """Whether both ran at about the same time: each is beside itself."""
        half_s = (self.verified_s - self.started_s) / 2
        return abs(other.started_s - self.started_s) <= half_s
