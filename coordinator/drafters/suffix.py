"""The suffix drafter: proposes what followed the newest tokens where most of them stood before, in this prompt and
completion or in recent answers to other requests (2411.04975).

It copies, as LZ77 does: one place says where the text goes on, and moves along with it while the tokens agree. Where they
part, the place is searched again. The n-gram drafter counts what followed a few tokens; this one looks for as many as
possible.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Sequence

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.ngram import CHUNK_TOKENS
from coordinator.reports import DraftedBy, DraftReport

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


# Of prompt and completion the newest tokens are looked through.
WINDOW_TOKENS = 16_384
# Whether the place is in this text or in another one, and how many tokens agree, by powers of two.
Kind = tuple[bool, int]


class SuffixDrafter:
    """One generation's place. It proposes ids without probabilities, so rule `match` verifies them."""

    def __init__(self, recent: TokenIndex | None) -> None:
        """`recent`: answers to other requests; None: this generation's text alone."""
        self._own = TokenIndex(WINDOW_TOKENS)
        self._texts = [self._own] if recent is None else [self._own, recent]
        # The text and the place in it where the next token stands, and how many tokens before it agree.
        self._text, self._place, self._agreement = self._own, 0, 0
        self._num_taken = 0
        self._hits: list[tuple[Kind, bool]] = []

    async def outlook(self, context: Context, num_tokens: int) -> list[Kind]:
        """The kinds of the next tokens."""
        await self._take(context)
        return [self._kind(self._agreement + index) for index in range(len(self._copy(num_tokens)))]

    def take_hits(self) -> list[tuple[Kind, bool]]:
        """Of each token since the last call that was foreseen: its kind, and whether it was right."""
        hits, self._hits = self._hits, []
        return hits

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        await self._take(context)
        return Proposal(self._copy(num_draft_tokens), report=DraftReport(drafter=DraftedBy.SUFFIX, reason="no match"))

    def truncate(self, length: int) -> None:
        """Does nothing: only decided tokens of the context are looked at."""

    def release(self) -> None:
        pass

    async def _take(self, context: Context) -> None:
        """Takes the tokens that are new since the last call; in the first call the prompt."""
        tokens, num_prompt_tokens = context.tokens, len(context.request.prompt)
        self._num_taken = max(self._num_taken, num_prompt_tokens - WINDOW_TOKENS)
        while self._num_taken < num_prompt_tokens:
            end = min(num_prompt_tokens, self._num_taken + CHUNK_TOKENS)
            self._own.extend(tokens[self._num_taken : end])
            self._num_taken = end
            if end == num_prompt_tokens:
                self._search(tokens[max(0, end - LONGEST_AGREEMENT) : end])
            else:
                await asyncio.sleep(0)
        while self._num_taken < len(tokens):
            self._num_taken += 1
            self._follow(tokens[max(0, self._num_taken - LONGEST_AGREEMENT) : self._num_taken])

    def _follow(self, newest: list[int]) -> None:
        """Moves behind the newest token."""
        foreseen = self._text.token_at(self._place)
        is_right = foreseen == newest[-1]
        if self._agreement > 0 and foreseen != END:
            self._hits.append((self._kind(self._agreement), is_right))
        self._own.extend(newest[-1:])
        # If it was another token, and the newest ones stand nowhere else: as if it had been replaced.
        self._place += 1
        self._agreement = self._agreement + 1 if is_right else 0
        if not is_right:
            self._search(newest)

    def _search(self, newest: list[int]) -> None:
        """Goes to where more tokens agree."""
        for text in self._texts:
            agreement, place = text.find(newest)
            if agreement > self._agreement:
                self._text, self._place, self._agreement = text, place, agreement

    def _copy(self, num_tokens: int) -> list[int]:
        """The next tokens, as far as the text goes. A copy of this text's own end goes on with what it has copied."""
        copied: list[int] = []
        own_end = len(self._own)
        for place in range(self._place, self._place + num_tokens if self._agreement else 0):
            is_copied = self._text is self._own and place >= own_end
            token = copied[place - own_end] if is_copied else self._text.token_at(place)
            if token == END:
                break
            copied.append(token)
        return copied

    def _kind(self, agreement: int) -> Kind:
        return self._text is self._own, min(agreement, LONGEST_AGREEMENT).bit_length()
