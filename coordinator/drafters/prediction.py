"""The prediction drafter: copies from the output that the client predicts.

After a mismatch the position moves to the longest match of the newest tokens, the nearest on a tie. It depends on decided
tokens alone.
"""

import asyncio
from bisect import bisect_left

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import LookupDrafter
from coordinator.drafters.ngram import CHUNK_TOKENS
from coordinator.reports import DraftReport
from paceline.speculation_params import MAX_DRAFT_TOKENS

# Newest tokens compared after a mismatch.
MAX_MATCH = 8
# Occurrences of the newest token tried on either side.
MAX_POSITIONS = 32
# Drafts per matching token: a new position may be wrong.
DRAFTS_PER_MATCH = 2
# Shortest match that proposes with a fixed length: single tokens match too often by chance.
LONG_MATCH = 2
# The output is expected to begin like the prediction.
FIRST_MATCH = LONG_MATCH


class PredictionDrafter(LookupDrafter):
    """Proposes ids only, so `match` verifies them."""

    name = "prediction"
    # Matches are likely to be long.
    max_draft_tokens = MAX_DRAFT_TOKENS

    def __init__(self, prediction: list[int]) -> None:
        self._prediction = prediction
        # Position of the next token, and the length of the match before it.
        self._position = 0
        self._match_length = FIRST_MATCH
        self._num_followed = 0
        # Token -> positions after it; built on the first mismatch.
        self._positions: dict[int, list[int]] | None = None
        self._hits: list[tuple[int, bool]] = []

    async def match(self, context: Context) -> int:
        """Returns the length of the newest tokens' match; 0 at the prediction's end."""
        await self._follow(context)
        return self._match_length if self._position < len(self._prediction) else 0

    async def candidates(self, context: Context, num_tokens: int) -> list[int]:
        """Kinds are bit lengths of matches."""
        match_length = await self.match(context)
        num_candidates = min(num_tokens, DRAFTS_PER_MATCH * match_length, len(self._prediction) - self._position)
        return [(match_length + index).bit_length() for index in range(num_candidates)]

    def take_hits(self) -> list[tuple[int, bool]]:
        hits, self._hits = self._hits, []
        return hits

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        num_tokens = min(num_draft_tokens, DRAFTS_PER_MATCH * await self.match(context))
        tokens = self._prediction[self._position : self._position + num_tokens]
        return Proposal(
            tokens, report=DraftReport(drafter=self.name, reason="the output does not follow the prediction")
        )

    async def _follow(self, context: Context) -> None:
        tokens, begin = context.tokens, len(context.request.prompt)
        for end in range(begin + self._num_followed + 1, len(tokens) + 1):
            is_inside = self._position < len(self._prediction)
            is_right = is_inside and self._prediction[self._position] == tokens[end - 1]
            if is_inside and self._match_length > 0:
                self._hits.append((self._match_length.bit_length(), is_right))
            if is_right:
                self._position += 1
                self._match_length += 1
            else:
                if self._positions is None:
                    self._positions = await _positions_by_token(self._prediction)
                self._find(tokens[max(begin, end - MAX_MATCH) : end])
        self._num_followed = len(tokens) - begin

    def _find(self, newest: list[int]) -> None:
        """Assumes that one token was replaced if nothing matches."""
        assert self._positions is not None, "built on the first mismatch"
        expected = self._position + 1
        positions = self._positions.get(newest[-1], [])
        middle = bisect_left(positions, expected)
        near = positions[max(0, middle - MAX_POSITIONS) : middle + MAX_POSITIONS]
        found = max(
            ((self._num_matching(newest, position), -abs(position - expected), position) for position in near),
            default=None,
        )
        self._match_length, self._position = (found[0], found[2]) if found is not None else (0, expected)

    def _num_matching(self, newest: list[int], position: int) -> int:
        num = 0
        while num < min(len(newest), position) and newest[-1 - num] == self._prediction[position - 1 - num]:
            num += 1
        return num


async def _positions_by_token(prediction: list[int]) -> dict[int, list[int]]:
    positions: dict[int, list[int]] = {}
    for index, token in enumerate(prediction):
        positions.setdefault(token, []).append(index + 1)
        if index % CHUNK_TOKENS == CHUNK_TOKENS - 1:
            await asyncio.sleep(0)
    return positions
