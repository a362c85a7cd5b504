"""Memory of n-gram tables: what is counted is the table, and it is full."""

import gc
from collections.abc import Iterator

import pytest

from benchmarks.paper.ngram_memory import measure_ngram_memory, measured, ngram_memory
from coordinator.drafters.ngram_table import NgramShape


@pytest.fixture(scope="module", autouse=True)
def _only_new_objects_are_collected() -> Iterator[None]:
    """Each measurement collects garbage, which takes long in a process with many modules."""
    gc.freeze()
    yield
    gc.unfreeze()


def test_bytes_grow_with_contexts_and_not_with_tokens_that_have_left() -> None:
    small, large = [measured(NgramShape(window), range(1000, 2000)) for window in (50, 200)]
    assert (small["contexts"], large["contexts"]) == (49 + 48 + 47, 199 + 198 + 197)
    assert large["bytes"] == pytest.approx(4 * small["bytes"], rel=0.4)
    # A context's key alone takes more than 100 bytes.
    assert small["bytes"] > 100 * small["contexts"]
    assert measured(NgramShape(50), [7] * 1000)["bytes"] < small["bytes"] / 8


def test_a_text_too_short_to_fill_a_window_twice_is_left_out() -> None:
    written = {"prompts": [[5] * 60], "texts": {"1": [{"prompt": 0, "tokens": [6] * 70}]}}
    found = measure_ngram_memory(written, (64, 128))
    rows = [(each["window"], each["text"]) for each in found]
    assert rows.count((64, "prompts and answers")) == rows.count((128, "no token twice")) == 2
    assert (128, "prompts and answers") not in rows
    table = ngram_memory(found)
    assert table.rows[0][:3] == (64, "4 3 2", "prompts and answers")
    assert table.rows[0][5] == found[0]["bytes"] / 64
