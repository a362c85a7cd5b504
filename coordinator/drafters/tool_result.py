"""The drafter of tool calls: copies from what tools returned (`coordinator.tools.tool_results`).

Its rates are its own: in a call, a short match in a file that was just read tells more than a long one in the rest of the
conversation, such as the parameters' names in the list of tools.
"""

import asyncio
from collections.abc import Sequence

from coordinator.context import Context
from coordinator.drafters.copying import CopyingDrafter
from coordinator.drafters.ngram import CHUNK_TOKENS
from coordinator.drafters.token_index import END, MAX_MATCH, TokenIndex


class ToolResultDrafter(CopyingDrafter):
    """Without a longer match, an argument is expected to be the newest result."""

    name = "tool_result"

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        num_tokens = sum(len(text) + 1 for text in texts)
        self._index = TokenIndex(num_tokens)
        super().__init__({self.name: self._index})
        self._unread = texts
        # What precedes an argument, and the position after it in the newest text.
        self._before, self._begin = texts[-1][0], num_tokens - len(texts[-1])
        self._num_seen = 0

    async def update(self, context: Context) -> None:
        await self._read()
        tokens = context.tokens
        # What the model says before its answer is no call.
        self._num_seen = max(self._num_seen, len(context.request.prompt))
        while self._num_seen < len(tokens):
            self._num_seen += 1
            self.follow(tokens[max(0, self._num_seen - MAX_MATCH) : self._num_seen])

    def search(self, newest: list[int]) -> None:
        super().search(newest)
        if self._match_length == 0 and newest[-1] == self._before:
            self._position, self._match_length = self._begin, 1

    async def _read(self) -> None:
        texts, self._unread = self._unread, ()
        for text in texts:
            for begin in range(0, len(text), CHUNK_TOKENS):
                self._index.extend(text[begin : begin + CHUNK_TOKENS])
                await asyncio.sleep(0)
            self._index.extend((END,))
