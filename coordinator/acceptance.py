"""Accepts or rejects drafts: pure arithmetic, no I/O. Defines the terms of all other files.

    proposal    k draft tokens, with q on a support for each if they were sampled
    verdict     the target's own tokens (`match`), or p on those supports (`rejection`)
    outcome     the accepted tokens and one more
    recovered   drawn in place of the first rejected draft
    bonus       drawn after all drafts were accepted
    target      drawn in a round without drafts
    forced      the only token that the output's format allows: appended without a round

p and q are the distributions after sampling transforms. The output follows p exactly, whatever the drafter: Leviathan,
Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding", Algorithm 1 and appendix A.1.
"""

import enum
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from coordinator.reports import NO_DRAFT_REPORT, NO_VERIFY_REPORT, DraftReport, VerifyReport
from paceline.checks import require
from paceline.noise import Purpose, make_key, uniform
from paceline.results import TokenLogprobs
from paceline.speculation import Rule


@dataclass(frozen=True, slots=True)
class PositionLogprobs:
    """Log-probabilities at a position. Under `rejection` the candidates are the support and the token drawn outside it."""

    candidates: dict[int, float]
    top_token_ids: list[int]
    top_logprobs: list[float]

    def of(self, token: int) -> TokenLogprobs:
        return TokenLogprobs(self.candidates[token], self.top_token_ids, self.top_logprobs)


Floats = NDArray[np.floating[Any]]


class Origin(enum.StrEnum):
    """A `StrEnum`: its table lookup, once per token, is faster than that of an `Enum`."""

    ACCEPTED = "A"
    RECOVERED = "R"
    BONUS = "B"
    TARGET = "T"
    FORCED = "F"


# What every round makes is not frozen, for that takes three times as long.
@dataclass(slots=True)
class Proposal:
    """k draft tokens; supports only if they were sampled."""

    tokens: list[int] = field(default_factory=list)
    supports: list[NDArray[np.int64]] = field(default_factory=list)
    support_probs: list[Floats] = field(default_factory=list)
    report: DraftReport = NO_DRAFT_REPORT
    # Per draft: whether the output's format allows no other; empty without one.
    is_forced: list[bool] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)

    def num_choices(self, num_tokens: int | None = None) -> int:
        """Returns how many of the first `num_tokens` drafts, or of all, are not forced."""
        return len(self.tokens[:num_tokens]) - sum(self.is_forced[:num_tokens])

    def first_choices(self, num_choices: int) -> "Proposal":
        """Returns the first `num_choices` choices with the tokens that they force."""
        if not self.is_forced:
            num_tokens = num_choices
        else:
            choices = [at for at, is_forced in enumerate(self.is_forced) if not is_forced]
            num_tokens = choices[num_choices] if num_choices < len(choices) else len(self.tokens)
        return replace(
            self, tokens=self.tokens[:num_tokens], supports=self.supports[:num_tokens],
            support_probs=self.support_probs[:num_tokens], is_forced=self.is_forced[:num_tokens],
        )  # fmt: skip

    def checked_by(self, rule: Rule) -> Rule:
        """Returns the rule to verify by: `match` without q, which equals `rejection` with a one-hot q."""
        return Rule.MATCH if self.tokens and not self.supports else rule


@dataclass(slots=True)
class Verdict:
    """k + 1 tokens under `match`.

    Under `rejection`, the bonus token; per draft, p on its support, the mass outside, and a token drawn there.
    """

    tokens: list[int]
    support_probs: list[Floats] = field(default_factory=list)
    outside_masses: list[float] = field(default_factory=list)
    outside_tokens: list[int] = field(default_factory=list)
    # Greedy with lenience, per draft: accepted although not the most likely token, as the target's `TorchSampler` decides.
    lenient_accepts: list[bool] = field(default_factory=list)
    # One per position if requested.
    logprobs: list[PositionLogprobs] = field(default_factory=list)
    rule: Rule = Rule.MATCH
    # In (0, 1]; 1 is lossless.
    lenience: float = 1.0
    # The first position at which the output's format and the request's token lists leave no token.
    dead_end: int | None = None
    report: VerifyReport = NO_VERIFY_REPORT


class Comparison(NamedTuple):
    """A draft under `rejection`: accepted if r * lenience * q < p, with uniform r."""

    q: float
    p: float
    r: float


@dataclass(slots=True)
class Outcome:
    tokens: list[int]
    num_accepted: int
    last_origin: Origin
    # One per token if requested.
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    # Under `rejection`: one per decided draft.
    comparisons: list[Comparison] = field(default_factory=list, compare=False)

    @property
    def origins(self) -> list[Origin]:
        return [Origin.ACCEPTED] * self.num_accepted + [self.last_origin]


@dataclass(slots=True)
class RoundNoise:
    """Uniforms of a round, keyed by its first position (`paceline.noise`)."""

    seed: int
    round_start: int

    def uniform(self, index: int, purpose: Purpose) -> float:
        """Returns a uniform in (0, 1)."""
        return uniform(make_key(self.seed, self.round_start, self.round_start + index, purpose))


def accept(proposal: Proposal, verdict: Verdict, noise: RoundNoise) -> Outcome:
    """Decides a round. Lenience below 1 bounds each token's probability by p / lenience (appendix A.5)."""
    if verdict.rule is Rule.MATCH:
        outcome = _accept_matching(proposal, verdict)
    else:
        outcome = _accept_by_ratio(proposal, verdict, noise)
    if not verdict.logprobs:
        return outcome
    logprobs = [at.of(token) for at, token in zip(verdict.logprobs, outcome.tokens, strict=False)]
    return replace(outcome, logprobs=logprobs)


def _accept_matching(proposal: Proposal, verdict: Verdict) -> Outcome:
    """Emits the target's own chain, so any drafter is lossless."""
    for index, token in enumerate(proposal.tokens):
        is_lenient = bool(verdict.lenient_accepts) and verdict.lenient_accepts[index]
        if token != verdict.tokens[index] and not is_lenient:
            return _end(proposal, index, verdict.tokens[index], Origin.RECOVERED)
    return _end(proposal, len(proposal), verdict.tokens[-1], Origin.BONUS)


def _accept_by_ratio(proposal: Proposal, verdict: Verdict, noise: RoundNoise) -> Outcome:
    """Accepts with probability min(1, p/(lenience q)), or draws from norm(max(0, p - q))."""
    comparisons: list[Comparison] = []
    for index, token in enumerate(proposal.tokens):
        support = proposal.supports[index]
        # The draft was sampled from the float32 values over their sum.
        q = proposal.support_probs[index].astype(np.float64)
        q /= q.sum()
        p = verdict.support_probs[index].astype(np.float64)
        here = int(np.flatnonzero(support == token)[0])
        compared = Comparison(float(q[here]), float(p[here]), noise.uniform(index, Purpose.ACCEPT))
        comparisons.append(compared)
        if compared.r * verdict.lenience * compared.q < compared.p:
            continue
        # Outside the support q is 0, so the residual is p, from which the target has drawn a token.
        weights = np.append(np.maximum(0.0, p - q), verdict.outside_masses[index])
        if weights.sum() == 0:
            # p equals q up to rounding: not a rejection.
            continue
        sums = weights.cumsum()
        chosen = int(np.searchsorted(sums, noise.uniform(index, Purpose.RESIDUAL) * sums[-1], side="right"))
        recovered = verdict.outside_tokens[index] if chosen == len(support) else int(support[chosen])
        return _end(proposal, index, recovered, Origin.RECOVERED, comparisons)
    return _end(proposal, len(proposal), verdict.tokens[-1], Origin.BONUS, comparisons)


def _end(
    proposal: Proposal, num_accepted: int, last: int, origin: Origin, comparisons: list[Comparison] | None = None
) -> Outcome:
    if not proposal.tokens:
        origin = Origin.TARGET
    return Outcome([*proposal.tokens[:num_accepted], last], num_accepted, origin, comparisons=comparisons or [])


class SyntheticAcceptance:
    """Replaces `acceptance.accept` in benchmarks: accepts each draft with the same probability.

    With random weights nothing is accepted, so speed at a given acceptance rate needs it. The output is meaningless.
    """

    def __init__(self, chance: float) -> None:
        """Raises InvalidArgument."""
        require(0 <= chance <= 1, "synthetic_acceptance", chance, "in [0, 1]")
        self.chance = chance

    def __call__(self, proposal: Proposal, verdict: Verdict, noise: RoundNoise) -> Outcome:
        for index in range(len(proposal)):
            if noise.uniform(index, Purpose.ACCEPT) >= self.chance:
                # The target's token at this position, under either rule.
                choices = verdict.outside_tokens or verdict.tokens
                return Outcome([*proposal.tokens[:index], choices[index]], index, Origin.RECOVERED)
        origin = Origin.BONUS if proposal.tokens else Origin.TARGET
        return Outcome([*proposal.tokens, verdict.tokens[-1]], len(proposal), origin)
