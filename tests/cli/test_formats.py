"""Output formats on the command line: what goes to the client, and forced tokens as they are shown."""

import io
import sys
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.printing import legend, line
from paceline.client import AsyncClient, Chunk, Finish, RoundTrace, Speculation, Timing, TracedDraft
from paceline.output_format import OutputFormat
from paceline.results import Deployment, Model, TokenizerInfo
from paceline.speculation_params import SpeculationParams

SCHEMA = '{"type": "object"}'
GBNF, LARK = 'root ::= "a"\n', '%llguidance {}\n\nstart: "a"\n'
FIGURES = Speculation(1, 0, 0, [], [], 1.0, forced=1)
CHUNK = Chunk("{}", [1, 2], "TF", [1, 1], finish=Finish("stop", 3, 0, 2, 7, FIGURES, Timing(1, 2, 0, 1, 0, 0)))


@pytest.fixture
def formats(monkeypatch: pytest.MonkeyPatch) -> list[OutputFormat | None]:
    """The formats that clients were given; a token drawn and one forced answer each."""
    asked: list[OutputFormat | None] = []

    async def stream(self: AsyncClient, *arguments: Any, **options: Any) -> AsyncGenerator[Chunk, None]:
        asked.append(options["format"])
        yield CHUNK

    async def describe(self: AsyncClient) -> Deployment:
        model = Model("tiny", "float32", "none", "own", "auto", "cpu", 9, 64, True)
        return Deployment(model, None, SpeculationParams(), 0, 1, "", TokenizerInfo(chat_template="x"))

    monkeypatch.setattr(AsyncClient, "stream", stream)
    monkeypatch.setattr(AsyncClient, "describe", describe)
    return asked


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "schema.json").write_text(SCHEMA)
    (tmp_path / "letters.gbnf").write_text(GBNF)
    (tmp_path / "letters.lark").write_text(LARK)
    monkeypatch.chdir(tmp_path)
    return tmp_path


TAKEN: dict[str, tuple[tuple[str, ...], OutputFormat | None]] = {
    "nothing": ((), None),
    "a schema": (("--json-schema", f" {SCHEMA}"), OutputFormat(f" {SCHEMA}")),
    "a schema's file": (("--json-schema", "schema.json"), OutputFormat(SCHEMA)),
    "compact": (("--json-schema", SCHEMA, "--compact-json"), OutputFormat(SCHEMA, fixed_whitespace=True)),
    "choices": (("--choice", "yes", "--choice", "no"), OutputFormat(choice=("yes", "no"))),
    "an expression": (("--regex", "[0-9]+"), OutputFormat(regex="[0-9]+")),
    "GBNF": (("--grammar", "letters.gbnf"), OutputFormat(grammar=LARK)),
    "Lark": (("--grammar", "letters.lark"), OutputFormat(grammar=LARK)),
}


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("name", TAKEN)
def test_a_format_goes_to_the_client(
    paceline, formats, folder: Path, monkeypatch: pytest.MonkeyPatch, command: str, name: str
) -> None:
    flags, expected = TAKEN[name]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"question\n")))
    ran = paceline(command, *flags)
    assert (ran.code, ran.err) == (0, "")
    assert formats == [expected]


REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "two": (("--json-schema", SCHEMA, "--regex", "a"), "--json-schema and --regex are given; give one of them"),
    "choices and a grammar": (
        ("--choice", "a", "--grammar", "x"),
        "--choice and --grammar are given; give one of them",
    ),
    "white space alone": (("--compact-json",), "--compact-json needs --json-schema"),
    "white space of an expression": (("--regex", "a", "--compact-json"), "--compact-json needs --json-schema"),
    "no such schema": (("--json-schema", "other.json"), "--json-schema other.json: No such file"),
    "no such grammar": (("--grammar", "other.lark"), "--grammar other.lark: No such file"),
    "bad GBNF": (("--grammar", "schema.gbnf"), "grammar is not GBNF: Unexpected end of input"),
    "a choice twice": (("--choice", "a", "--choice", "a"), "it must be different texts"),
    "an empty expression": (("--regex", ""), "format is 'empty'"),
}


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_format_is_refused_in_one_line(paceline, formats, folder: Path, command: str, name: str) -> None:
    (folder / "schema.gbnf").write_text('root ::= "')
    flags, said = REFUSED[name]
    ran = paceline(command, *(("x",) if command == "generate" else ()), *flags)
    assert (ran.code, ran.out, formats) == (2, "", [])
    assert said in ran.err
    assert len(ran.err.strip().splitlines()) == 1


def test_forced_tokens_are_counted_where_there_are_any(paceline, formats, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = paceline("generate", "x", "--choice", "a", "--stats")
    assert "forced" in ran.err
    assert "1 (50%)" in ran.err
    finish = replace(CHUNK.finish, speculation=replace(FIGURES, forced=0))
    monkeypatch.setitem(globals(), "CHUNK", replace(CHUNK, finish=finish))
    assert "forced" not in paceline("generate", "x", "--choice", "a", "--stats").err


def test_the_legend_names_forced_tokens_where_a_format_is_given() -> None:
    assert "forced by the format (bright_black)" in legend(True).plain
    assert "forced" not in legend().plain


def trace(*proposed: TracedDraft, num_accepted: int = 0) -> RoundTrace:
    return RoundTrace(1, "ngram", "", 4, list(proposed), num_accepted, [], [], [], 0, 0, 0, 0)


TRACED: dict[str, tuple[Chunk, str]] = {
    "after a token": (Chunk("a:b", [1, 2, 3], "TFF", [1, 1, 1], trace=trace()), "*a =: =b"),
    "after a rejected draft": (
        Chunk("abc", [1, 2, 3], "ARF", [1, 1, 1], trace=trace(TracedDraft(1, "a", True), TracedDraft(9, "x", False), num_accepted=1)),
        "+a -x >b =c",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRACED)
def test_a_trace_shows_forced_tokens_in_their_place(name: str) -> None:
    chunk, tokens = TRACED[name]
    assert f"| {tokens} |" in line(chunk).plain
