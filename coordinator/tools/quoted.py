"""Look-up text from tool results.

An agent reads a file by a tool, its lines often numbered, and writes it back inside a JSON string of a call. There the tokens
are others: line ends are escaped, and no numbers stand between them. So the results are tokenized as a call would have them.
"""

import hashlib
import json
import re
from collections import OrderedDict
from collections.abc import Sequence
from itertools import groupby

from coordinator.tokenizer import Tokenizer
from coordinator.tools.conversation import Message

# Of all results together; the newest are taken first.
MAX_TOKENS = 16_384
# Far above the average length of a token, so that a huge result is not tokenized whole.
MAX_CHARACTERS = 8 * MAX_TOKENS
# Results whose tokens are kept: an agent sends all of them with every request.
MAX_KEPT = 256
# Shortest run of numbered lines.
MIN_LINES = 3
_NUMBERED = re.compile(r" *(\d{1,7})(?:\t|→|: | ?\| | ?[:|→]?$)")
# Around the text in a call; one token or more tell where it begins.
_BEFORE, _AFTER = '": "', '"'


class QuotedResults:
    """Tokenizes the results of tools, each once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._kept: OrderedDict[bytes, list[int]] = OrderedDict()

    async def read(self, messages: Sequence[Message]) -> list[list[int]]:
        """Returns the newest results' tokens, oldest first."""
        texts: list[list[int]] = []
        room = MAX_TOKENS
        for message in reversed(messages):
            if message.role == "tool" and message.content and room > 0:
                texts.append((await self._tokens_of(message.content[:MAX_CHARACTERS]))[:room])
                room -= len(texts[-1])
        return texts[::-1]

    async def _tokens_of(self, result: str) -> list[int]:
        digest = hashlib.sha256(result.encode()).digest()
        if digest not in self._kept:
            self._kept[digest] = await self._tokenizer.run(lambda: self._encode(result), len(result))
            if len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(digest)
        return self._kept[digest]

    def _encode(self, result: str) -> list[int]:
        escaped = json.dumps(without_line_numbers(result), ensure_ascii=False)[1:-1]
        return self._tokenizer.encode(_BEFORE + escaped + _AFTER, add_special_tokens=False)


def without_line_numbers(text: str) -> str:
    """Removes the numbers of consecutively numbered lines."""
    kept: list[str] = []
    for _, group in groupby(enumerate(text.split("\n")), _run):
        lines = [line for _, line in group]
        found = [_NUMBERED.match(line) for line in lines]
        if len(lines) >= MIN_LINES:
            lines = [line[each.end() :] if each else line for line, each in zip(lines, found, strict=True)]
        kept += lines
    return "\n".join(kept)


def _run(place: tuple[int, str]) -> int | None:
    """Returns the same for lines that are numbered one after the other; None without a number."""
    at, line = place
    number = _NUMBERED.match(line)
    return None if number is None else int(number[1]) - at
