"""Every form of prompt file, and what is wrong with one is said."""

import json

import pytest

from paceline.errors import InvalidArgument
from paceline.loadtest.prompts import Lengths, parse_lengths, parse_prompts, synthetic_prompt

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
SHAREGPT = [
    {"id": "a", "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "Why?"}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "nobody asked"}]},
    {"id": "c", "conversations": []},
    {"id": "d", "conversations": [{"from": "user", "value": "Who?"}, {"from": "human", "value": "later"}]},
]


def lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def test_plain_lines_hold_texts_and_conversations() -> None:
    assert parse_prompts(lines({"prompt": "Hi"}, {"messages": CHAT}), "f") == ["Hi", CHAT]


def test_of_spec_bench_the_first_turn_is_used() -> None:
    record = {"question_id": 1, "category": "writing", "turns": ["first", "second"]}
    assert parse_prompts(lines(record), "f") == ["first"]


@pytest.mark.parametrize("text", [json.dumps(SHAREGPT), json.dumps(SHAREGPT, indent=2), lines(*SHAREGPT)])
def test_of_sharegpt_the_first_human_turn_is_used_and_monologues_are_passed_over(text: str) -> None:
    assert parse_prompts(text, "f") == ["Why?", "Who?"]


def test_empty_lines_count_for_the_numbers_and_line_separators_in_a_text_do_not() -> None:
    good = lines({"prompt": "a\u2028b"})
    assert parse_prompts("\n" + good, "f") == ["a\u2028b"]
    with pytest.raises(InvalidArgument, match="--prompts f, line 3: "):
        parse_prompts("\n" + good + "{}\n", "f")


@pytest.mark.parametrize(
    "bad",
    [
        "{}", '{"prompt": ""}', '{"prompt": 3}', '{"turns": []}', '{"turns": [1]}', '{"messages": []}', "3", "null",
        '{"messages": [{"role": "user"}]}', '{"messages": ["hi"]}', '{"conversations": "hi"}', '"text"', "{", "text",
    ],
)  # fmt: skip
def test_a_bad_entry_is_named(bad: str) -> None:
    with pytest.raises(InvalidArgument, match="--prompts f, line 2: "):
        parse_prompts('{"prompt": "good"}\n' + bad, "f")


def test_a_bad_entry_of_a_list_is_named() -> None:
    with pytest.raises(InvalidArgument, match="--prompts f, entry 2: "):
        parse_prompts('[{"prompt": "good"}, {"text": "bad"}]', "f")
    with pytest.raises(InvalidArgument, match="not a JSON list"):
        parse_prompts('[{"prompt": "good"},', "f")


@pytest.mark.parametrize("text", ["", "\n\n", "[]", lines(SHAREGPT[1])])
def test_a_file_without_prompts_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="at least one prompt"):
        parse_prompts(text, "f")


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
