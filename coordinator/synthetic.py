from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise, Verdict
from paceline.checks import require
from paceline.noise import Purpose


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
