"""Text to look up drafts in: tool results, and files in the user's messages.

An agent reads a file by a tool, its lines often numbered, or finds it in the user's message, and writes it back inside a JSON
string of a call. There the tokens are others: line ends are escaped, and no numbers stand between them. So these texts are
tokenized as a call would have them.
"""

import hashlib
import json
import re
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import groupby

from coordinator.tokenizer import TEXT_CHARACTERS, Tokenizer
from coordinator.tools.tool_messages import Message
from paceline.byte_cache import ENTRY_BYTES, ByteCache

# Of all results together; the newest are taken first.
MAX_TOKENS = 16_384
# Likewise. Far above the average length of a token, so that a huge result is not tokenized whole.
MAX_CHARACTERS = 8 * MAX_TOKENS
# Results' tokens that are kept: an agent sends all results with every request.
MAX_KEPT_BYTES = 16 << 20
# Shortest run of numbered lines.
MIN_LINES = 3
FENCE = "```"
_NUMBERED = re.compile(r" *(\d{1,7})(?:\t|→|: | ?\| | ?[:|→]?$)")
# Around the text in a call; one token or more tell where it begins.
_BEFORE, _AFTER = '": "', '"'


class ToolResults:
    """Tokenizes results and files, each once for each cache salt: how long it takes tells nothing of other salts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # By salt and digest.
        self._kept: ByteCache[tuple[str, bytes], array[int]] = ByteCache(MAX_KEPT_BYTES)

    async def read(self, messages: Sequence[Message], salt: str) -> list[list[int]]:
        """Returns the newest results' tokens, oldest first."""
        results = {(salt, hashlib.sha256(each.encode()).digest()): each for each in _newest(messages)}
        known = {key: self._kept.get(key) for key in results}
        missing = [key for key, tokens in known.items() if tokens is None]
        cost = sum(len(results[key]) + TEXT_CHARACTERS for key in missing)
        found = await self._tokenizer.run(lambda: [self._encode(results[key]) for key in missing], cost)
        for key, tokens in zip(missing, found, strict=True):
            known[key] = tokens
            self._kept.put(key, tokens, sys.getsizeof(tokens) + sys.getsizeof(salt) + ENTRY_BYTES)
        texts: list[list[int]] = []
        room = MAX_TOKENS
        for each in known.values():
            if each is not None and room > 0:
                texts.append(each[:room].tolist())
                room -= len(texts[-1])
        return texts[::-1]

    def _encode(self, result: str) -> "array[int]":
        escaped = json.dumps(without_line_numbers(result), ensure_ascii=False)[1:-1]
        return array("i", self._tokenizer.encode(_BEFORE + escaped + _AFTER, add_special_tokens=False)[:MAX_TOKENS])


def _newest(messages: Sequence[Message]) -> Iterator[str]:
    """Yields the newest results and files, newest first: so many characters of them."""
    room = MAX_CHARACTERS
    for message in reversed(messages):
        for text in reversed(_texts(message)):
            yield text[:room]
            room -= len(text)
            if room <= 0:
                return


def _texts(message: Message) -> list[str]:
    """Returns a tool's result, or what may be a file in the user's message: its fenced blocks, or else all its lines."""
    if message.role == "tool" and message.content:
        return [message.content]
    if message.role != "user" or message.content.count("\n") < MIN_LINES:
        return []
    return list(_fenced(message.content)) or [message.content]


def _fenced(text: str) -> Iterator[str]:
    block: list[str] | None = None
    for line in text.split("\n"):
        is_fence = line.startswith(FENCE)
        if is_fence and block:
            yield "\n".join(block)
        if is_fence:
            block = [] if block is None else None
        elif block is not None:
            block.append(line)


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
