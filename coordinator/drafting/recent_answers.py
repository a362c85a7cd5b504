"""Recent answers: what other requests were answered, for those that share a `cache_salt`.

Agents and their users quote one another, ask again, and have a text changed in one place: much of an answer has been
written before. An answer is remembered once it is complete, in memory alone. Requests with different salts learn
nothing of one another, not even by how fast their answers come.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Sequence

from coordinator.drafting.token_index import END, TokenIndex

# Salts whose answers are remembered: beyond them, those of the one that was not used for longest are forgotten.
MAX_SALTS = 16
# A longer answer is remembered in parts, between which other generations run: a part takes a few milliseconds.
PART_TOKENS = 4096


class RecentAnswers:
    """The newest answers of each salt."""

    def __init__(self, capacity: int) -> None:
        """`capacity`: tokens that are remembered for a salt."""
        self._capacity = capacity
        self._by_salt: OrderedDict[str, TokenIndex] = OrderedDict()

    def of(self, salt: str) -> TokenIndex:
        """The answers that a request with this salt may look up."""
        if salt not in self._by_salt:
            self._by_salt[salt] = TokenIndex(self._capacity)
            if len(self._by_salt) > MAX_SALTS:
                self._by_salt.popitem(last=False)
        self._by_salt.move_to_end(salt)
        return self._by_salt[salt]

    async def add(self, salt: str, answer: Sequence[int]) -> None:
        """Remembers a complete answer, or its end where it is longer than all that can be remembered."""
        index = self.of(salt)
        for begin in range(max(0, len(answer) - self._capacity), len(answer), PART_TOKENS):
            if begin:
                await asyncio.sleep(0)
            index.extend((*answer[begin : begin + PART_TOKENS], END))
