"""Every form of prompt file, and what is wrong with one is said in one line that names file and place."""

import json
from pathlib import Path

import pytest

from paceline.errors import InvalidArgument
from paceline.prompts import PromptRecord, read_prompts

CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
SHAREGPT = [
    {"id": "a", "conversations": [{"from": "gpt", "value": "no"}, {"from": "human", "value": "Why?"}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "nobody asked"}]},
    {"id": "c", "conversations": []},
    {"id": "d", "conversations": [{"from": "user", "value": "Who?"}, {"from": "human", "value": "later"}]},
]


def lines(*records: object) -> str:
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


def prompts_of(file: Path, content: str | bytes) -> list[str | list[dict[str, str]]]:
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return [record.prompt for record in read_prompts("--prompts", file)]


def error_of(file: Path) -> str:
    """What is said, without option and file."""
    with pytest.raises(InvalidArgument) as raised:
        read_prompts("--prompts", file)
    said = str(raised.value)
    assert said.startswith(f"--prompts {file}")
    assert "\n" not in said
    return said.removeprefix(f"--prompts {file}")


def test_lines_hold_texts_and_conversations(file: Path) -> None:
    assert prompts_of(file, lines({"prompt": "Hi"}, {"messages": CHAT}, "bare")) == ["Hi", CHAT, "bare"]


def test_of_turns_the_first_is_used_and_id_and_category_are_kept(file: Path) -> None:
    file.write_text(
        lines({"question_id": 1, "category": "writing", "turns": ["first", "second"]}, {"id": "x", "prompt": "y"})
    )
    assert read_prompts("--prompts", file) == [PromptRecord("first", 1, "writing"), PromptRecord("y", "x", "prompts")]


@pytest.mark.parametrize("text", [json.dumps(SHAREGPT), json.dumps(SHAREGPT, indent=2), lines(*SHAREGPT)])
def test_of_sharegpt_the_first_human_turn_is_used_and_monologues_are_left_out(file: Path, text: str) -> None:
    assert prompts_of(file, text) == ["Why?", "Who?"]


def test_the_text_of_a_conversation_is_what_the_user_says_first(file: Path) -> None:
    file.write_text(lines({"messages": [*CHAT, {"role": "user", "content": "again"}]}, "bare"))
    assert [record.text for record in read_prompts("--prompts", file)] == ["Hello?", "bare"]


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\v", "\f"])
def test_lines_end_at_newlines_alone(file: Path, separator: str) -> None:
    # Inside a JSON text control characters below U+0020 are escaped.
    inside = separator if separator >= "\u0080" else ""
    good = lines({"prompt": f"a{inside}b"})
    assert prompts_of(file, f"\n{good}{separator}\n") == [f"a{inside}b"]
    file.write_text(f"\n{good}{separator}\n{{}}\n", encoding="utf-8")
    assert error_of(file).startswith(", line 4: no prompt")


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_empty_lines_windows_newlines_and_a_byte_order_mark_change_nothing(
    file: Path, newline: str, mark: bytes
) -> None:
    text = newline.join(["", '{"prompt": "é"}', "  ", '{"prompt": "two"}', "", ""])
    assert prompts_of(file, mark + text.encode()) == ["é", "two"]


@pytest.mark.parametrize(
    "bad",
    [
        "{}", '{"prompt": ""}', '{"prompt": " "}', '{"prompt": 3}', '{"turns": []}', '{"turns": [1]}', '""', "3",
        '{"messages": []}', "null", '{"messages": [{"role": "user"}]}', '{"messages": ["hi"]}',
        '{"messages": [{"role": "system", "content": "hi"}]}', '{"conversations": "hi"}', '{"prompt": "\\ud83d"}',
        '{"messages": [{"role": "user", "content": "\\ud83d"}]}', "[" * 200_000, "1" * 5000,
    ],
)  # fmt: skip
def test_a_bad_entry_is_named(file: Path, bad: str) -> None:
    file.write_text('{"prompt": "good"}\n' + bad)
    assert error_of(file).startswith(", line 2: ")


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ('{"prompt": "good"}\n{"prompt": bad}', ", line 2, column 12: not JSON: Expecting value"),
        ('{"prompt": "good"}\n\ntext', ", line 3, column 1: not JSON: Expecting value"),
        ('[{"prompt": "good"},\n {"prompt": "bad"', ", line 2, column 18: not JSON: Expecting ',' delimiter"),
    ],
)
def test_bad_json_is_named_by_line_and_column_with_the_parsers_words(file: Path, bad: str, said: str) -> None:
    file.write_text(bad)
    assert error_of(file) == said


def test_a_bad_entry_of_a_list_is_named(file: Path) -> None:
    file.write_text('[{"prompt": "good"}, {"text": "bad"}]')
    assert error_of(file).startswith(", entry 2: no prompt")


@pytest.mark.parametrize("text", ["", "\n\n", "[]", lines(SHAREGPT[1])])
def test_a_file_without_prompts_is_refused(file: Path, text: str) -> None:
    file.write_text(text)
    assert error_of(file) == ": contains no prompt"


def test_latin_1_a_folder_and_a_missing_file_are_said(file: Path, tmp_path: Path) -> None:
    assert error_of(file) == ": no such file"
    assert error_of(tmp_path) == ": Is a directory"
    file.write_bytes('{"prompt": "good"}\n{"prompt": "café"}\n'.encode("latin-1"))
    assert error_of(file) == ", line 2: not UTF-8 text; save the file as UTF-8"
