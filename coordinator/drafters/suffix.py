"""The suffix drafter: copies what followed the longest match of the newest tokens: in this context, in recent answers, or in
what tools returned.

A position advances while tokens match, as in LZ77; a mismatch starts a new search. Suffix decoding: 2411.04975.
"""

import asyncio
from collections.abc import Sequence

from coordinator.acceptance import Proposal
from coordinator.context import Context, Request
from coordinator.drafters.drafter import DrafterSet, Factory, LookupDrafter, Resources
from coordinator.drafters.ngram import CHUNK_TOKENS, NgramDrafter
from coordinator.drafters.token_index import END, MAX_MATCH, TokenIndex
from coordinator.reports import DraftReport
from paceline.speculation import MAX_DRAFT_TOKENS

# Newest tokens of prompt and completion to search.
WINDOW_TOKENS = 16_384
# Which text the match is in, and the bit length of its length.
Kind = tuple[str, int]


class SuffixDrafter(LookupDrafter):
    """Proposes ids only, so `match` verifies them."""

    name = "suffix"
    # Long matches are likely to continue.
    max_draft_tokens = MAX_DRAFT_TOKENS

    def __init__(self, recent: TokenIndex | None, quoted: Sequence[Sequence[int]] = ()) -> None:
        self._own = TokenIndex(WINDOW_TOKENS)
        self._texts = {"own": self._own}
        if recent is not None:
            self._texts["recent"] = recent
        self._quoted = quoted
        # Name of the text and position of the next token, and the length of the match before it.
        self._name, self._position, self._match_length = "own", 0, 0
        self._num_seen = 0
        self._hits: list[tuple[Kind, bool]] = []

    async def candidates(self, context: Context, num_tokens: int) -> list[Kind]:
        await self._update(context)
        return [self._kind(self._match_length + index) for index in range(len(self._copy(num_tokens)))]

    def take_hits(self) -> list[tuple[Kind, bool]]:
        hits, self._hits = self._hits, []
        return hits

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        await self._update(context)
        return Proposal(self._copy(num_draft_tokens), report=DraftReport(drafter=self.name, reason="no match"))

    async def _update(self, context: Context) -> None:
        tokens, num_prompt_tokens = context.tokens, len(context.request.prompt)
        if self._quoted:
            self._texts["quoted"] = await _index(self._quoted)
            self._quoted = ()
        self._num_seen = max(self._num_seen, num_prompt_tokens - WINDOW_TOKENS)
        while self._num_seen < num_prompt_tokens:
            end = min(num_prompt_tokens, self._num_seen + CHUNK_TOKENS)
            self._own.extend(tokens[self._num_seen : end])
            self._num_seen = end
            if end == num_prompt_tokens:
                self._search(tokens[max(0, end - MAX_MATCH) : end])
            else:
                await asyncio.sleep(0)
        while self._num_seen < len(tokens):
            self._num_seen += 1
            self._follow(tokens[max(0, self._num_seen - MAX_MATCH) : self._num_seen])

    def _follow(self, newest: list[int]) -> None:
        predicted = self._texts[self._name].token_at(self._position)
        is_right = predicted == newest[-1]
        if self._match_length > 0 and predicted != END:
            self._hits.append((self._kind(self._match_length), is_right))
        self._own.extend(newest[-1:])
        # Without another match, assume that one token was replaced.
        self._position += 1
        self._match_length = self._match_length + 1 if is_right else 0
        if not is_right:
            self._search(newest)

    def _search(self, newest: list[int]) -> None:
        for name, text in self._texts.items():
            length, position = text.find(newest)
            if length > self._match_length:
                self._name, self._position, self._match_length = name, position, length

    def _copy(self, num_tokens: int) -> list[int]:
        """Continues with the copy itself at the end of its own text."""
        copied: list[int] = []
        own_end = len(self._own)
        for position in range(self._position, self._position + num_tokens if self._match_length else 0):
            is_copied = self._name == "own" and position >= own_end
            token = copied[position - own_end] if is_copied else self._texts[self._name].token_at(position)
            if token == END:
                break
            copied.append(token)
        return copied

    def _kind(self, match_length: int) -> Kind:
        return self._name, min(match_length, MAX_MATCH).bit_length()


async def _index(texts: Sequence[Sequence[int]]) -> TokenIndex:
    index = TokenIndex(sum(len(text) + 1 for text in texts))
    for text in texts:
        for begin in range(0, len(text), CHUNK_TOKENS):
            index.extend(text[begin : begin + CHUNK_TOKENS])
            await asyncio.sleep(0)
        index.extend((END,))
    return index


def make_suffix(resources: Resources, request: Request) -> SuffixDrafter:
    recent = None if resources.recent is None else resources.recent.of(request.cache_salt)
    return SuffixDrafter(recent, request.quoted)


def _adaptive(resources: Resources, request: Request) -> DrafterSet:
    return DrafterSet([make_suffix(resources, request), NgramDrafter(resources.ngram_shape)])


FACTORY = Factory(make_suffix, _adaptive)
