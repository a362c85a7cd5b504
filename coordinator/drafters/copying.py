"""The base of drafters that copy: they hold a position in one of several texts, which advances while tokens match, as in LZ77.

After a mismatch the position moves to the longest match of the newest tokens.
"""

from abc import ABC, abstractmethod

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.drafter import LookupDrafter
from coordinator.drafters.token_index import END, MAX_MATCH, TokenIndex
from coordinator.reports import DraftReport
from paceline.speculation_params import MAX_DRAFT_TOKENS

# Which text the match is in, and the bit length of its length.
Kind = tuple[str, int]


class CopyingDrafter(LookupDrafter, ABC):
    """Proposes ids only, so `match` verifies them."""

    # Long matches are likely to continue.
    max_draft_tokens = MAX_DRAFT_TOKENS

    def __init__(self, texts: dict[str, TokenIndex]) -> None:
        self._texts = texts
        # Name of the text and position of the next token, and the length of the match before it.
        self._name, self._position, self._match_length = next(iter(texts)), 0, 0
        self._hits: list[tuple[Kind, bool]] = []

    @abstractmethod
    async def update(self, context: Context) -> None:
        """Follows the tokens since the last call."""

    async def candidates(self, context: Context, num_tokens: int) -> list[Kind]:
        await self.update(context)
        return [self._kind(self._match_length + index) for index in range(len(self.copy(num_tokens)))]

    def take_hits(self) -> list[tuple[Kind, bool]]:
        hits, self._hits = self._hits, []
        return hits

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        await self.update(context)
        return Proposal(self.copy(num_draft_tokens), report=DraftReport(drafter=self.name, reason="no match"))

    def follow(self, newest: list[int]) -> None:
        """Takes the newest token. `newest`: it and those before it."""
        predicted = self._texts[self._name].token_at(self._position)
        is_right = predicted == newest[-1]
        if self._match_length > 0 and predicted != END:
            self._hits.append((self._kind(self._match_length), is_right))
        self.add(newest[-1])
        # Without another match, assume that one token was replaced.
        self._position += 1
        self._match_length = self._match_length + 1 if is_right else 0
        if not is_right:
            self.search(newest)

    def add(self, token: int) -> None:
        """Takes the newest token before a search for it."""
        return None

    def search(self, newest: list[int]) -> None:
        for name, text in self._texts.items():
            length, position = text.find(newest)
            if length > self._match_length:
                self._name, self._position, self._match_length = name, position, length

    def copy(self, num_tokens: int) -> list[int]:
        """Returns the tokens at the position; none without a match."""
        return self._texts[self._name].read(self._position, num_tokens) if self._match_length else []

    def _kind(self, match_length: int) -> Kind:
        return self._name, min(match_length, MAX_MATCH).bit_length()
