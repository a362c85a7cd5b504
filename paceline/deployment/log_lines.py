"""The lines that a process writes, however long: who stops reading a pipe stops the process at its other end."""

import asyncio
from collections.abc import AsyncIterator

READ_BYTES = 65536
# What is longer comes in parts.
MAX_LINE_BYTES = 65536


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
