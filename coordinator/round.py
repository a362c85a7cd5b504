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

    @property
    def propose_s(self) -> float:
        return self.proposed_s - self.started_s

    @property
    def verify_s(self) -> float:
        return self.verified_s - self.proposed_s
