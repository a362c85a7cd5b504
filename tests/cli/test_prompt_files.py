"""All commands read files of prompts alike: a fault is one line with option, file and place, before any work."""

import json
from pathlib import Path

import pytest

from tests.services import Trio

NOBODY = ("--address", "unix:/nowhere/nobody.sock")
COMMANDS = {
    "generate": ("--prompts", ("generate", *NOBODY)),
    "plan": ("--prompts", ("plan", "--measure", *NOBODY)),
    "bench": ("--prompts", ("bench", *NOBODY)),
    "distill": ("--prompts", ("distill", "--out", "/nowhere/work")),
    "distill, eval prompts": ("--eval-prompts", ("distill", "--out", "/nowhere/work")),
}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, ": no such file"),
        (b"\n", ": contains no prompt"),
        (b'{"prompt": "a"}\n{"prompt": "caf\xe9"}\n', ", line 2: not UTF-8 text; save the file as UTF-8"),
        (b'{"prompt": "a"}\n\n{"prompt": a}\n', ", line 3, column 12: not JSON: Expecting value"),
        (b'[{"prompt": "a"}, {"text": "b"}]', ", entry 2: no prompt; an entry is a text, or an object with `prompt`"),
    ],
    ids=["missing", "empty", "Latin-1", "bad JSON", "no prompt"],
)
@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_file_is_named_with_its_place(
    paceline, tmp_path: Path, command: str, content: bytes | None, said: str
) -> None:
    file = tmp_path / "prompts.jsonl"
    if content is not None:
        file.write_bytes(content)
    option, arguments = COMMANDS[command]
    ran = paceline(*arguments, option, file)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1), ran
    assert ran.err.startswith(f"error: {option} {file}{said}")


def test_generate_answers_every_form_of_record_and_keeps_its_id(paceline, tiny_trio: Trio, tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    records = [
        {"id": "one", "prompt": "a\u2028b"},
        {"question_id": 2, "turns": ["c", "d"]},
        {"conversations": [{"from": "human", "value": "e"}]},
        "f",
    ]
    file.write_text(json.dumps(records, ensure_ascii=False), encoding="utf-8-sig")
    ran = paceline("generate", "--address", tiny_trio.address, "--prompts", file, "--max-tokens", 3, "--json")
    assert ran.code == 0, ran.err
    found = [json.loads(line) for line in ran.out.split("\n") if line]
    assert [(line["index"], line.get("id")) for line in found] == [(0, "one"), (1, 2), (2, None), (3, None)]
    assert "id" not in found[2]
