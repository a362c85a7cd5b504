"""The token index: finds where the newest tokens stood before, in texts of bounded length.

Places behind the same few tokens form a chain, newest first, and a table by hash says where each chain begins (hash
chains: RFC 1951, section 4). Tokens and chains lie in rings: memory is bounded, and what comes new is written over what
is oldest.
"""

from array import array
from collections.abc import Sequence

# Tokens that a chain has in common: a place is found once so many agree.
KEY_TOKENS = 2
# Of a chain so many places are looked at.
MOST_PLACES = 16
# An agreement is counted so far.
LONGEST_AGREEMENT = 32
# Stands behind each text.
END = -1
# Of no token: the place behind no occurrence.
NOWHERE = 0


class TokenIndex:
    """At most `capacity` tokens, the newest. A place is the number of tokens that were added before it.

    Memory: 20 bytes for each token of the capacity, 28 where it is just above a power of two.
    """

    def __init__(self, capacity: int) -> None:
        assert capacity >= KEY_TOKENS, "an index holds at least a key"
        self._capacity = capacity
        self._length = 0
        self._tokens = array("i")
        # By token: the place behind an older occurrence of the tokens that end with it.
        self._older = array("q")
        # By hash of KEY_TOKENS tokens: the newest place behind them.
        self._newest = array("q", bytes(8 << (capacity - 1).bit_length()))

    def __len__(self) -> int:
        """How many tokens were added: the place behind the newest."""
        return self._length

    def extend(self, tokens: Sequence[int]) -> None:
        """Adds tokens. Those of the vocabulary, or END."""
        capacity = self._capacity
        for token in tokens:
            at = self._length % capacity
            if self._length < capacity:
                self._tokens.append(token)
                self._older.append(NOWHERE)
            else:
                self._tokens[at] = token
            self._length += 1
            if self._length >= KEY_TOKENS:
                slot = self._slot(self._tokens[at - 1], token)
                self._older[at], self._newest[slot] = self._newest[slot], self._length

    def token_at(self, place: int) -> int:
        """The token that stands at `place`; END behind a text, and where the token is forgotten."""
        is_known = max(0, self._length - self._capacity) <= place < self._length
        return self._tokens[place % self._capacity] if is_known else END

    def find(self, newest: Sequence[int]) -> tuple[int, int]:
        """How many tokens at the end of `newest` stand before a place, and the place: the one where most do, of several
        the newest. (0, NOWHERE) where fewer than KEY_TOKENS do."""
        best = KEY_TOKENS - 1, NOWHERE
        if len(newest) >= KEY_TOKENS:
            place = self._newest[self._slot(*newest[-KEY_TOKENS:])]
            oldest = max(NOWHERE, self._length - self._capacity)
            for _ in range(MOST_PLACES):
                if place <= oldest:
                    break
                if place < self._length and (agreement := self._agreement(newest, place)) > best[0]:
                    best = agreement, place
                place = self._older[(place - 1) % self._capacity]
        return best if best[1] != NOWHERE else (0, NOWHERE)

    def _agreement(self, newest: Sequence[int], place: int) -> int:
        agreement = 0
        for token in reversed(newest[-LONGEST_AGREEMENT:]):
            place -= 1
            if self.token_at(place) != token:
                break
            agreement += 1
        return agreement

    def _slot(self, *key: int) -> int:
        return hash(key) & (len(self._newest) - 1)
