"""The suffix drafter: copies what followed the longest match of the newest tokens, in this context or in recent responses.

Suffix decoding: 2411.04975.
"""

import asyncio

from coordinator.context import Context
from coordinator.drafters.copying import CopyingDrafter
from coordinator.drafters.drafter import DrafterSet, Factory, LookupDrafter, Resources
from coordinator.drafters.ngram import CHUNK_TOKENS
from coordinator.drafters.token_index import MAX_MATCH, TokenIndex
from coordinator.drafters.tool_result import ToolResultDrafter
from coordinator.request import Request

# Newest tokens of prompt and completion to search.
WINDOW_TOKENS = 16_384


class SuffixDrafter(CopyingDrafter):
    name = "suffix"

    def __init__(self, recent: TokenIndex | None) -> None:
        self._own = TokenIndex(WINDOW_TOKENS)
        super().__init__({"own": self._own} if recent is None else {"own": self._own, "recent": recent})
        self._num_seen = 0

    async def update(self, context: Context) -> None:
        tokens, num_prompt_tokens = context.tokens, len(context.request.prompt)
        self._num_seen = max(self._num_seen, num_prompt_tokens - WINDOW_TOKENS)
        while self._num_seen < num_prompt_tokens:
            end = min(num_prompt_tokens, self._num_seen + CHUNK_TOKENS)
            self._own.extend(tokens[self._num_seen : end])
            self._num_seen = end
            if end == num_prompt_tokens:
                self.search(tokens[max(0, end - MAX_MATCH) : end])
            else:
                await asyncio.sleep(0)
        while self._num_seen < len(tokens):
            self._num_seen += 1
            self.follow(tokens[max(0, self._num_seen - MAX_MATCH) : self._num_seen])

    def add(self, token: int) -> None:
        self._own.extend((token,))

    def copy(self, num_tokens: int) -> list[int]:
        """Continues with the copy itself at the end of its own text."""
        copied = super().copy(num_tokens)
        if copied and self._name == "own":
            period = len(copied)
            copied += [copied[index % period] for index in range(num_tokens - period)]
        return copied


def make_suffix(resources: Resources, request: Request) -> SuffixDrafter:
    return SuffixDrafter(None if resources.recent is None else resources.recent.of(request.cache_salt))


def make_lookups(resources: Resources, request: Request) -> list[LookupDrafter]:
    """Returns all that look drafts up, for an adaptive length."""
    from_tools = [ToolResultDrafter(request.tool_results)] if request.tool_results else []
    return [*from_tools, make_suffix(resources, request)]


FACTORY = Factory(make_suffix, lambda resources, request: DrafterSet(make_lookups(resources, request)))
