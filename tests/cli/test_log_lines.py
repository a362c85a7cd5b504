"""What `paceline up` reads of its services' logs."""

import asyncio
import sys

import pytest

from paceline.cli.services import MAX_LINE_BYTES, ExitReason, lines_of

LONG = 5 * MAX_LINE_BYTES + 1


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        ("print('a'); print('b')", ["a", "b"]),
        ("print('a\\n\\nb', end='')", ["a", "", "b"]),
        ("import sys; sys.stdout.buffer.write(b'\\xff\\n')", ["\ufffd"]),
        (f"print('x' * {LONG}); print('b')", [*["x" * MAX_LINE_BYTES] * 5, "x", "b"]),
    ],
    ids=["lines", "an empty one, and no end", "no utf-8", "a long one"],
)
async def test_all_that_a_process_writes_is_read(program: str, expected: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    async with asyncio.timeout(60):
        found = [line async for line in lines_of(process.stdout)]
        assert await process.wait() == 0
    assert [part for part in found if set(part) != {"x"}] == [part for part in expected if set(part) != {"x"}]
    assert sum(map(len, found)) == sum(map(len, expected))
    assert max(map(len, found)) <= MAX_LINE_BYTES


@pytest.mark.parametrize("length", [1, MAX_LINE_BYTES - 1, MAX_LINE_BYTES, MAX_LINE_BYTES + 1, 2 * MAX_LINE_BYTES])
@pytest.mark.parametrize("chunk", [MAX_LINE_BYTES - 1, MAX_LINE_BYTES])
async def test_how_a_line_arrives_makes_no_line_of_its_own(length: int, chunk: int) -> None:
    stream, written = asyncio.StreamReader(limit=2**22), b"x" * length + b"\nb\n"

    async def write() -> None:
        for start in range(0, len(written), chunk):
            stream.feed_data(written[start : start + chunk])
            # The reader takes this chunk before the next one comes.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        stream.feed_eof()

    writing = asyncio.create_task(write())
    found = [line async for line in lines_of(stream)]
    await writing
    assert "".join(found) == "x" * length + "b"
    assert found[-1] == "b"
    assert "" not in found


TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 1, in <module>']


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["INFO loading", "error: no such folder"], "no such folder"),
        (
            [*TRACEBACK, "paceline.errors.InvalidArgument: a key", "", "ERROR gone", *TRACEBACK, "SystemExit: 3"],
            "a key",
        ),
        ([*TRACEBACK, "ValueError: x", ""], "it ended with status 3; its last line: ValueError: x"),
        (["INFO loading"], "it ended with status 3; its last line: INFO loading"),
        ([], "it ended with status 3; its last line: none"),
    ],
    ids=["its own last line", "before a library's end", "an exception of none of ours", "killed", "silent"],
)
def test_why_a_process_ended(lines: list[str], said: str) -> None:
    words = ExitReason()
    for line in lines:
        words.add_line(line)
    assert words.of(3) == said
