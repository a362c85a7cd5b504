import time
from dataclasses import dataclass, field

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.context import Context, Emission
from coordinator.reports import DraftReport, VerifyReport
from paceline.results import Finish, Speculation, Timing


@dataclass(slots=True)
class Round:
    """Times are `time.perf_counter` seconds."""

    proposal: Proposal
    verify_result: VerifyResult
    outcome: Outcome
    started_s: float
    proposed_s: float
    verified_s: float

    @property
    def num_decided(self) -> int:
        """Drafts after the first rejection are not counted."""
        return min(len(self.proposal), self.outcome.num_accepted + 1)

    @property
    def num_chosen(self) -> int:
        """Returns how many of the round's tokens no output format forced."""
        return self.proposal.num_choices(self.outcome.num_accepted) + 1

    @property
    def propose_s(self) -> float:
        return self.proposed_s - self.started_s

    @property
    def verify_s(self) -> float:
        """Returns the seconds of the target's answer, without what its draft head took."""
        return max(0.0, self.verified_s - self.proposed_s - self.verify_result.report.drafting_us / 1e6)


@dataclass(slots=True)
class GenerationStats:
    """Times in microseconds unless the name says otherwise."""

    arrived_s: float = field(default_factory=time.perf_counter)
    # None while it waits for a slot.
    admitted_s: float | None = None
    first_token_us: int = 0
    cached_prompt_tokens: int = 0
    # Rounds after the prompt's, one target forward pass each.
    rounds: int = 0
    round_tokens: int = 0
    proposed_per_position: list[int] = field(default_factory=list)
    accepted_per_position: list[int] = field(default_factory=list)
    # Rounds by number of accepted and emitted drafts.
    rounds_by_accepted: list[int] = field(default_factory=list)
    # Drafts from the request's prediction: accepted and emitted, and the rest.
    prediction_accepted: int = 0
    prediction_rejected: int = 0
    forced: int = 0
    # Proposed and accepted tokens by drafter and draft model.
    by_source: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    last_round: Round | None = None
    draft_us: int = 0
    target_us: int = 0
    queued_us: int = 0
    rounds_us: int = 0

    def count(self, finished: Round, emission: Emission) -> None:
        proposal = finished.proposal
        # Drafts after a stop are undecided, and forced ones no guess.
        num_accepted, num_proposed = emission.origins.count(Origin.ACCEPTED), proposal.num_choices()
        if self.first_token_us == 0:
            self.count_first_token()
        if proposal.report.drafter == "prediction":
            (_, _, num_predicted), *_ = proposal.report.split(num_proposed)
            self.prediction_accepted += min(num_accepted, num_predicted)
            self.prediction_rejected += max(0, num_predicted - num_accepted)
        self.last_round = finished
        num_forced = emission.origins.count(Origin.FORCED)
        self.forced += num_forced
        self.count_round(
            len(emission.tokens) - num_forced, num_proposed, num_accepted, finished.started_s, proposal.report,
            finished.verify_result.report,
        )  # fmt: skip

    def count_round(
        self, num_tokens: int, num_proposed: int, num_accepted: int, started_s: float, draft: DraftReport,
        verify: VerifyReport,
    ) -> None:  # fmt: skip
        """Counts a round that ends now. `started_s`: `time.perf_counter`."""
        if self.rounds_us == 0:
            # The prompt's round does not count as speculation.
            self.cached_prompt_tokens = verify.cached_tokens
        else:
            self.rounds += 1
            self.round_tokens += num_tokens
            if num_proposed >= len(self.rounds_by_accepted):
                self.rounds_by_accepted += [0] * (num_proposed + 1 - len(self.rounds_by_accepted))
            self.rounds_by_accepted[num_accepted] += 1
        if num_proposed:
            self._count_positions(num_proposed, num_accepted)
            parts = zip(draft.split(num_proposed), draft.split(num_accepted), strict=True)
            for (name, draft_name, num_own), (_, _, num_right) in parts:
                proposed, accepted = self.by_source.get((name, draft_name), (0, 0))
                self.by_source[name, draft_name] = proposed + num_own, accepted + num_right
        self.draft_us += draft.compute_us + verify.drafting_us
        self.target_us += verify.compute_us
        self.queued_us += draft.queued_us + verify.queued_us
        self.rounds_us += int((time.perf_counter() - started_s) * 1e6)

    def count_first_token(self) -> None:
        self.first_token_us = self.total_us

    def finish(self, context: Context, synthetic_acceptance_rate: float | None = None) -> Finish:
        """Leaves the reason empty while the generation runs."""
        lenience = context.request.speculation.lenience
        return Finish(
            reason="" if context.finish_reason is None else context.finish_reason.value,
            prompt_tokens=len(context.request.prompt),
            cached_prompt_tokens=self.cached_prompt_tokens,
            completion_tokens=context.num_generated,
            reasoning_tokens=context.num_reasoning_tokens,
            seed=context.request.seed,
            speculation=Speculation(
                rounds=self.rounds,
                proposed=self.proposed,
                accepted=self.accepted,
                proposed_per_position=list(self.proposed_per_position),
                accepted_per_position=list(self.accepted_per_position),
                mean_acceptance_length=self.mean_acceptance_length,
                lenience=lenience if lenience < 1 else None,
                synthetic_acceptance_rate=synthetic_acceptance_rate,
                rounds_by_accepted=list(self.rounds_by_accepted),
                prediction_accepted=self.prediction_accepted,
                prediction_rejected=self.prediction_rejected,
                forced=self.forced,
            ),
            timing=Timing(
                ttft_ms=self.first_token_us / 1e3,
                total_ms=self.total_us / 1e3,
                draft_ms=self.draft_us / 1e3,
                target_ms=self.target_us / 1e3,
                queued_ms=self.queued_us / 1e3,
                rpc_ms=self.rpc_us / 1e3,
            ),
            unenforced=context.request.unenforced,
            matched_stop=context.matched_stop,
            context_full=context.is_full,
        )

    def _count_positions(self, num_proposed: int, num_accepted: int) -> None:
        missing = num_proposed - len(self.proposed_per_position)
        self.proposed_per_position += [0] * missing
        self.accepted_per_position += [0] * missing
        for index in range(num_proposed):
            self.proposed_per_position[index] += 1
            self.accepted_per_position[index] += index < num_accepted

    @property
    def sources(self) -> list[str]:
        """Returns the drafters that proposed."""
        return sorted({name for name, _ in self.by_source})

    @property
    def proposed(self) -> int:
        return sum(self.proposed_per_position)

    @property
    def accepted(self) -> int:
        return sum(self.accepted_per_position)

    @property
    def mean_acceptance_length(self) -> float:
        """Returns tokens per target forward pass."""
        return self.round_tokens / self.rounds if self.rounds else 0.0

    @property
    def total_us(self) -> int:
        return int((time.perf_counter() - self.arrived_s) * 1e6)

    @property
    def rpc_us(self) -> int:
        """Returns the time outside both servers: messages and event loops."""
        return max(0, self.rounds_us - self.draft_us - self.target_us - self.queued_us)
