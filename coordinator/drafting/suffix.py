"""The suffix drafter: proposes what followed the newest tokens where most of them stood before, in this prompt and
completion or in recent answers to other requests (2411.04975).

It copies, as LZ77 does: one place says where the text goes on, and moves along with it while the tokens agree. Where they
part, the place is searched again. The n-gram drafter counts what followed a few tokens; this one looks for as many as
possible.
"""

import asyncio

from coordinator.acceptance import DraftedBy, Proposal
from coordinator.context import Context
from coordinator.drafting.ngram import CHUNK_TOKENS
from coordinator.drafting.token_index import END, LONGEST_AGREEMENT, TokenIndex

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
        return Proposal(self._copy(num_draft_tokens), drafter=DraftedBy.SUFFIX, reason="no match")

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
