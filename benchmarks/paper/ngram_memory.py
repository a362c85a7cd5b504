"""Memory of n-gram tables, by tracemalloc, and the time to add a token.

A table is filled twice before it is measured, so that the older half has left it, as in a long generation. The tokens
themselves belong to the request and do not count.
"""

import gc
import time
import tracemalloc
from collections.abc import Sequence
from itertools import chain
from typing import Any

from benchmarks.paper.published import AKUNU_TABLES
from benchmarks.paper.table import Cell, Table
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape, NgramTable

WINDOWS = (512, 4096)
ORDERS = (DEFAULT_SHAPE.orders, tuple(range(8, 1, -1)))
# Repeats; the fastest counts, since disturbances only slow.
TIMES = 5


def measure_ngram_memory(written: dict[str, Any], windows: Sequence[int] = WINDOWS) -> list[dict[str, Any]]:
    """Returns a row per shape and text. `written`: prompts, and the target's texts for them at temperature 1."""
    answered = ((*written["prompts"][text["prompt"]], *text["tokens"]) for text in written["texts"]["1"])
    real = list(chain.from_iterable(answered))
    rows: list[dict[str, Any]] = []
    for window in windows:
        # Numbers beyond the small ones, which Python keeps only once.
        for name, tokens in (("prompts and answers", real), ("no token twice", range(1000, 1000 + 2 * window))):
            if len(tokens) >= 2 * window:
                text = list(tokens[: 2 * window])
                rows += [{"text": name, **measured(NgramShape(window, orders), text)} for orders in ORDERS]
    return rows


def measured(shape: NgramShape, tokens: Sequence[int]) -> dict[str, Any]:
    """Returns bytes of a table of all `tokens`, and microseconds per token."""
    gc.collect()
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    table = filled(shape, tokens)
    gc.collect()
    num_bytes = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return {
        "window": shape.window_tokens, "orders": list(shape.orders), "contexts": len(table), "bytes": num_bytes,
        "microseconds": min(_seconds(shape, tokens) for _ in range(TIMES)) * 1e6 / len(tokens),
    }  # fmt: skip


def filled(shape: NgramShape, tokens: Sequence[int]) -> NgramTable:
    table = NgramTable(shape)
    for token in tokens:
        table.add(token)
    return table


def _seconds(shape: NgramShape, tokens: Sequence[int]) -> float:
    began_s = time.perf_counter()
    filled(shape, tokens)
    return time.perf_counter() - began_s


def ngram_memory(part: Sequence[dict[str, Any]]) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (each["window"], " ".join(map(str, each["orders"])), each["text"], each["contexts"], each["bytes"],
         each["bytes"] / each["window"], each["microseconds"])
        for each in part
    ]  # fmt: skip
    columns = (
        "window", "orders", "text", "contexts", "bytes", "bytes for each token of the window", "µs to add a token"
    )  # fmt: skip
    note = (
        "Bytes of a full table in Python by tracemalloc, after as many tokens again have left it. A generation has at "
        f"most two of them. akunu's text gives {AKUNU_TABLES} for orders 4, 3, 2 and a history of 512 tokens, in C++; its "
        "counts stay when their tokens have left."
    )
    return Table("ngram_memory", "N-gram tables' memory", columns, rows, [note])
