"""Parts of the paper's benchmark: kept, measured anew where asked, and never mixed with another setup's."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.paper.results import Parts, Setup
from paceline.errors import InvalidArgument

SETUP = Setup("target", "none", "draft", "prompts.jsonl", 100, 1)


def test_a_part_is_measured_once_and_again_where_asked(tmp_path: Path) -> None:
    assert not Parts(tmp_path, SETUP, ()).has("texts")
    assert Parts(tmp_path, SETUP, ()).get("texts", lambda: 1) == 1
    kept, anew = Parts(tmp_path, SETUP, ()), Parts(tmp_path, SETUP, ("texts",))
    assert kept.has("texts")
    assert [kept.get("texts", lambda: 2), anew.get("texts", lambda: 3), anew.get("texts", lambda: 4)] == [1, 3, 3]


def test_a_part_of_another_setup_is_refused_by_what_differs(tmp_path: Path) -> None:
    Parts(tmp_path, SETUP, ()).get("texts", lambda: 1)
    with pytest.raises(InvalidArgument, match=r"texts\.json was measured with another seed"):
        Parts(tmp_path, replace(SETUP, seed=2), ()).get("texts", lambda: 2)
