"""The hierarchical drafter: n-grams guess what the draft model will draft, and it checks the guesses in one forward.

A draft for the draft (Leviathan, Kalman, Matias 2211.17192, section 6). The model's proposal is the same whatever is guessed:
a right guess saves the model a step, a wrong one costs it a row (`paceline.theory.guessed_draft_steps`).
"""

from collections.abc import Hashable, Sequence

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.drafter import Rates
from coordinator.drafters.model import DraftDeadline, RemoteDrafter
from coordinator.drafters.ngram import NgramDrafter
from coordinator.remote.link import Link
from coordinator.reports import DraftedBy

# How often a guess behind right ones is right, by the length of its match: as n-grams foresee the text (`ngram`). A match
# longer than these is right more often still (0.72 of 4 tokens, 0.96 of 7, in greedy texts), and that is learned soon.
FIRST_RATES = {3: 0.6, 2: 0.5, 1: 0.25}
# The first rate counts as so many guesses, and this is the factor on the weight of older ones for each new one.
FIRST_WEIGHT, MEMORY = 4.0, 0.98
# A row more in a draft model's forward, in forwards of one row: 0.25 measured for the default draft, 0.11 for a 1B in 4 bits.
ROW_STEPS = 0.2


class HierarchicalDrafter(RemoteDrafter):
    """One generation's sequence on the draft server, with guesses.

    They follow from decided tokens and from this generation's drafts alone, so a seed repeats them.
    """

    drafted_by = DraftedBy.HIERARCHICAL

    def __init__(self, link: Link, request: Request, deadline: DraftDeadline, ngram: NgramDrafter) -> None:
        super().__init__(link, request, deadline)
        self._ngram = ngram
        self._rates = Rates(_first_rate, FIRST_WEIGHT, MEMORY)

    async def propose(self, context: Context, num_draft_tokens: int, least_confidence: float = 0.0) -> Proposal:
        if num_draft_tokens < 2 or self.absence(context):
            return await super().propose(context, num_draft_tokens, least_confidence)
        # The last draft need not be guessed: no other depends on it.
        kinds = await self._ngram.outlook(context, num_draft_tokens - 1)
        guess = (await self._ngram.propose(context, num_worth_a_row([self._rates[kind] for kind in kinds]))).tokens
        proposal = await self._draft(context, num_draft_tokens, least_confidence, guess)
        self._learn(kinds, guess, proposal.tokens)
        return proposal

    def _learn(self, kinds: Sequence[Hashable], guess: list[int], drafts: list[int]) -> None:
        """What is behind a wrong guess was guessed for another text, and says nothing."""
        for kind, guessed, drafted in zip(kinds, guess, drafts, strict=False):
            self._rates.learn(kind, guessed == drafted)
            if guessed != drafted:
                return


def num_worth_a_row(rates: Sequence[float]) -> int:
    """How many guesses save most. `rates`: of each guess, how likely it is right behind right ones."""
    best, most, saved, chance = 0, 0.0, 0.0, 1.0
    for num_guesses, rate in enumerate(rates, start=1):
        chance *= rate
        saved += chance - ROW_STEPS
        if saved > most:
            best, most = num_guesses, saved
    return best


def _first_rate(kind: Hashable) -> float:
    assert isinstance(kind, tuple)
    match_length, _ = kind
    return FIRST_RATES[min(match_length, max(FIRST_RATES))]
