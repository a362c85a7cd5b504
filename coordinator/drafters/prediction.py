"""The prediction drafter: proposes what the client says the output will be, from where the output stands in it.

While the output follows the prediction, one position says where they stand together. Where they part, the place is found
again by the newest tokens: the place before which most of them stand, of several the one nearest to where they parted.
The place follows from decided tokens alone, each looked at once, however rounds divide them.
"""

import asyncio
from bisect import bisect_left

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ngram import CHUNK_TOKENS
from coordinator.policy.policy import Proposer, propose_from
from coordinator.reports import DraftedBy, DraftReport

# The newest tokens that are compared to find a place again.
LONGEST_SEARCHED = 8
# Of places before which the newest token stands, so many on either side are looked at.
MOST_PLACES = 32
# Drafts for each token in a row that agreed: a place that was just found may be the wrong one.
DRAFTS_PER_AGREEMENT = 2
# The prediction proposes after at least so many tokens in a row that agreed. On a Python file of 200 lines, returned with
# one line changed, 10 of 142 rounds were spent elsewhere with 2 tokens, 18 of 148 with 4; a text that has nothing to do
# with the output was proposed from in 46 of 1,000 rounds with 2 tokens, in 320 with 1.
LONG_AGREEMENT = 2
# The output is expected to begin as the prediction does: this counts as so many tokens that agreed.
FIRST_AGREEMENT = LONG_AGREEMENT


class PredictionDrafter:
    """One generation's prediction. It proposes ids without probabilities, so rule `match` verifies them."""

    def __init__(self, prediction: list[int]) -> None:
        self._prediction = prediction
        # Where the prediction has the token that comes next, and how many tokens before it agreed.
        self._position = 0
        self._agreement = FIRST_AGREEMENT
        # Of the output's tokens those that were followed.
        self._num_followed = 0
        # Token -> the places behind it, once they are needed.
        self._places: dict[int, list[int]] | None = None
        self._hits: list[tuple[int, bool]] = []

    async def agreement(self, context: Context) -> int:
        """How many of the newest tokens agree with the prediction; 0 where nothing is left of it."""
        await self._follow(context)
        return self._agreement if self._position < len(self._prediction) else 0

    async def outlook(self, context: Context, num_tokens: int) -> list[int]:
        """The kinds of the next tokens: how many tokens before each agree, by powers of two."""
        agreement = await self.agreement(context)
        most = min(num_tokens, DRAFTS_PER_AGREEMENT * agreement, len(self._prediction) - self._position)
        return [(agreement + index).bit_length() for index in range(most)]

    def take_hits(self) -> list[tuple[int, bool]]:
        """Of each token since the last call that was predicted: its kind, and whether the prediction was right."""
        hits, self._hits = self._hits, []
        return hits

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        most = min(num_draft_tokens, DRAFTS_PER_AGREEMENT * await self.agreement(context))
        tokens = self._prediction[self._position : self._position + most]
        return Proposal(
            tokens, report=DraftReport(drafter=DraftedBy.PREDICTION, reason="the output does not follow the prediction")
        )

    def truncate(self, length: int) -> None:
        """Does nothing: only decided tokens of the context are followed."""

    def release(self) -> None:
        pass

    async def _follow(self, context: Context) -> None:
        tokens, begin = context.tokens, len(context.request.prompt)
        for end in range(begin + self._num_followed + 1, len(tokens) + 1):
            has_idea = self._agreement > 0 and self._position < len(self._prediction)
            is_right = self._position < len(self._prediction) and self._prediction[self._position] == tokens[end - 1]
            if has_idea:
                self._hits.append((self._agreement.bit_length(), is_right))
            if is_right:
                self._position += 1
                self._agreement += 1
            else:
                if self._places is None:
                    self._places = await _places_by_token(self._prediction)
                self._find(tokens[max(begin, end - LONGEST_SEARCHED) : end])
        self._num_followed = len(tokens) - begin

    def _find(self, newest: list[int]) -> None:
        """Finds the place again. If there is none, one token of the prediction is taken to have been replaced."""
        assert self._places is not None, "they were gathered"
        expected = self._position + 1
        places = self._places.get(newest[-1], [])
        middle = bisect_left(places, expected)
        near = places[max(0, middle - MOST_PLACES) : middle + MOST_PLACES]
        found = max(
            ((self._num_agreeing(newest, place), -abs(place - expected), place) for place in near), default=None
        )
        self._agreement, self._position = (found[0], found[2]) if found is not None else (0, expected)

    def _num_agreeing(self, newest: list[int], place: int) -> int:
        """How many tokens before `place` are the newest ones."""
        num = 0
        while num < min(len(newest), place) and newest[-1 - num] == self._prediction[place - 1 - num]:
            num += 1
        return num


class PredictionProposer(Proposer):
    """Proposes from the prediction while the output follows it, and as `otherwise` does elsewhere."""

    def __init__(self, prediction: PredictionDrafter, num_draft_tokens: int, otherwise: Proposer) -> None:
        super().__init__(prediction, otherwise)
        self._prediction = prediction
        self._num_draft_tokens = num_draft_tokens
        self._otherwise = otherwise

    async def propose_after_prompt(self, context: Context) -> Proposal:
        if await self._prediction.agreement(context) >= LONG_AGREEMENT:
            return await propose_from(self._prediction, context, self._num_draft_tokens)
        return await self._otherwise.propose_after_prompt(context)


async def _places_by_token(prediction: list[int]) -> dict[int, list[int]]:
    places: dict[int, list[int]] = {}
    for index, token in enumerate(prediction):
        places.setdefault(token, []).append(index + 1)
        if index % CHUNK_TOKENS == CHUNK_TOKENS - 1:
            # Other generations run.
            await asyncio.sleep(0)
    return places
