"""What a response tells of a round, as the page reads it."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import gateway
from gateway.dialects.choices import trace_body
from paceline.client import Chunk
from paceline.results import RoundTrace

SCRIPTS = sorted((Path(gateway.__file__).parent / "static").glob("*.js"))


def test_the_page_reads_times_that_a_trace_has() -> None:
    given = {field.name: [] if "list" in str(field.type) else 0 for field in fields(RoundTrace)}
    trace = RoundTrace(**cast(Any, given))
    body = trace_body(Chunk("", [], "", [], trace=trace), cast(Any, {}))
    assert body is not None
    lists = re.findall(r"PARTS = \[(.*?)\];|times = \[(.*?)\]\.map", "\n".join(each.read_text() for each in SCRIPTS))
    assert len(lists) == 2
    assert set(re.findall(r'"(\w+)"', str(lists))) == body["ms"].keys()
