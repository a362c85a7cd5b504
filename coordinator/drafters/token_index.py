"""An index of token sequences, and the recent responses to search with it.

Hash chains (RFC 1951, section 4) link positions after the same tokens, newest first. Ring buffers bound memory.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence

# Tokens that a chain has in common: the shortest match.
KEY_TOKENS = 2
# Positions tried in a chain.
MAX_POSITIONS = 16
# Longest match.
MAX_MATCH = 32
# Follows each text.
END = -1
# Position without a match.
NOWHERE = 0
# Salts kept; the least recently used is dropped.
MAX_SALTS = 16
# Tokens added before yielding to other generations.
PART_TOKENS = 4096


class TokenIndex:
    """The newest `capacity` tokens by position. Takes 20 to 28 bytes per token."""

    def __init__(self, capacity: int) -> None:
        assert capacity >= KEY_TOKENS, "an index holds at least a key"
        self._capacity = capacity
        self._length = 0
        self._tokens = array("i")
        # By position: the position after the previous occurrence of the same key.
        self._older = array("q")
        # By hash of KEY_TOKENS tokens: the newest position after them.
        self._newest = array("q", bytes(8 << (capacity - 1).bit_length()))

    def __len__(self) -> int:
        """Returns the position after the newest token."""
        return self._length

    def extend(self, tokens: Sequence[int]) -> None:
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

    def token_at(self, position: int) -> int:
        """Returns END for overwritten tokens."""
        is_known = max(0, self._length - self._capacity) <= position < self._length
        return self._tokens[position % self._capacity] if is_known else END

    def read(self, position: int, num_tokens: int) -> list[int]:
        """Returns up to `num_tokens` tokens from a position on, up to the next END."""
        if not max(0, self._length - self._capacity) <= position < self._length:
            return []
        begin, num_tokens = position % self._capacity, min(num_tokens, self._length - position)
        tokens = self._tokens[begin : begin + num_tokens].tolist()
        tokens += self._tokens[: num_tokens - len(tokens)]
        return tokens[: tokens.index(END)] if END in tokens else tokens

    def find(self, newest: Sequence[int]) -> tuple[int, int]:
        """Returns the longest, most recent match's length and the position after it, or (0, NOWHERE)."""
        best = KEY_TOKENS - 1, NOWHERE
        if len(newest) >= KEY_TOKENS:
            position = self._newest[self._slot(*newest[-KEY_TOKENS:])]
            oldest = max(NOWHERE, self._length - self._capacity)
            for _ in range(MAX_POSITIONS):
                if position <= oldest:
                    break
                if position < self._length and (length := self._match_length(newest, position)) > best[0]:
                    best = length, position
                position = self._older[(position - 1) % self._capacity]
        return best if best[1] != NOWHERE else (0, NOWHERE)

    def _match_length(self, newest: Sequence[int], position: int) -> int:
        length = 0
        for token in reversed(newest[-MAX_MATCH:]):
            position -= 1
            if self.token_at(position) != token:
                break
            length += 1
        return length

    def _slot(self, *key: int) -> int:
        return hash(key) & (len(self._newest) - 1)


class SuffixCache:
    """In memory only. Requests with different salts share nothing, not even timing."""

    def __init__(self, capacity: int) -> None:
        # Tokens per salt.
        self._capacity = capacity
        self._by_salt: OrderedDict[str, TokenIndex] = OrderedDict()

    def of(self, salt: str) -> TokenIndex:
        if salt not in self._by_salt:
            self._by_salt[salt] = TokenIndex(self._capacity)
            if len(self._by_salt) > MAX_SALTS:
                self._by_salt.popitem(last=False)
        self._by_salt.move_to_end(salt)
        return self._by_salt[salt]

    async def add(self, salt: str, answer: Sequence[int]) -> None:
        """Adds an answer; if it exceeds the capacity, only its end is kept."""
        index = self.of(salt)
        for begin in range(max(0, len(answer) - self._capacity), len(answer), PART_TOKENS):
            if begin:
                await asyncio.sleep(0)
            index.extend((*answer[begin : begin + PART_TOKENS], END))
