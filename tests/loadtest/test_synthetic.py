"""Prompts of random tokens."""

import pytest

from paceline.errors import InvalidArgument
from paceline.loadtest.workload import Lengths, parse_lengths, synthetic_prompt


def test_synthetic_prompts_have_their_length_and_are_told_by_their_key() -> None:
    ids = range(5, 90)
    prompt = synthetic_prompt(200, ids, "0 off 1")
    assert len(prompt) == 200
    assert set(prompt) <= set(ids)
    assert len(set(prompt)) > 50
    assert prompt == synthetic_prompt(200, ids, "0 off 1") != synthetic_prompt(200, ids, "0 off 2")


def test_lengths_are_read_and_bounded() -> None:
    assert parse_lengths("512:128") == Lengths(512, 128)
    Lengths(400, 112).check(512)
    with pytest.raises(InvalidArgument, match="at most 512 tokens"):
        Lengths(400, 113).check(512)


@pytest.mark.parametrize("text", ["", "5", ":", "5:", "0:5", "5:0", "-1:5", "a:b", "1:2:3", "1.5:2"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--synthetic is "):
        parse_lengths(text)
