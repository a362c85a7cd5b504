"""`paceline demo`: what can't be compared is said before anything starts. The demo itself is what `make demo` runs."""

import pytest


@pytest.mark.parametrize(("value", "said"), [("0", "at least 1"), ("17", "in [0, 16], adaptive or entropy")])
def test_bad_draft_tokens_are_named(paceline, value: str, said: str) -> None:
    ran = paceline("demo", "--draft-tokens", value)
    assert (ran.code, f"draft_tokens is '{value}'" in ran.err, said in ran.err) == (2, True, True), ran.err
