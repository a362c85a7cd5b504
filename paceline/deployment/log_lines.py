"""The lines that a process writes, however long: who stops reading a pipe stops the process at its other end."""

import asyncio
import re
from collections.abc import AsyncIterator

READ_BYTES = 65536
# What is longer comes in parts.
MAX_LINE_BYTES = 65536
# How a line begins that says why a process ends: a service's own last line, or our exception in a traceback.
_REASON = re.compile(r"error: |paceline\.errors\.\w+: ")


class LastWords:
    """Why a process ended, as far as its lines say."""

    def __init__(self) -> None:
        self._line, self._reason = "", ""

    def hear(self, line: str) -> None:
        """A traceback may follow the reason: a library's own, of how it gave up."""
        self._line = line or self._line
        if begin := _REASON.match(line):
            self._reason = line[begin.end() :]

    def of(self, status: int) -> str:
        """Of a process that ended with this exit status."""
        return self._reason or f"it ended with status {status}; its last line: {self._line or 'none'}"


async def lines_of(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields lines without their ends, until the stream ends."""
    begun = b""
    while chunk := await stream.read(READ_BYTES):
        *whole, begun = (begun + chunk).split(b"\n")
        for line in whole:
            for part in _parts(line):
                yield _text_of(part)
        # The last part may be the line's end: it waits for what follows.
        *parts, begun = _parts(begun)
        for part in parts:
            yield _text_of(part)
    if begun:
        yield _text_of(begun)


def _parts(line: bytes) -> list[bytes]:
    """At least one; none but an empty line's is empty."""
    return [line[start : start + MAX_LINE_BYTES] for start in range(0, max(1, len(line)), MAX_LINE_BYTES)]


def _text_of(line: bytes) -> str:
    return line.decode(errors="replace").rstrip()
