"""An answer in colors is the answer, to be copied from the terminal."""

import io

import pytest
from rich.console import Console

from paceline.cli.printing import Answer, Printer, ReasoningPrinter, TracePrinter, colored
from paceline.client import Chunk, RoundTrace
from paceline.prompts import PromptRecord

TEXTS = [
    "all:\n", "\tcc\t-o x", "\t", "\n", "日本語 " * 12, "é\u0301👩\u200d👩\u200d👧", "[bold]x[/bold] :smile: ", " end  ", "x" * 100, "",
]  # fmt: skip
GREEN, RED, BLUE, GRAY, END = "\x1b[32m", "\x1b[31m", "\x1b[34m", "\x1b[90m", "\x1b[0m"


def shown(chunk: Chunk, **how: object) -> str:
    written = io.StringIO()
    console = Console(file=written, highlight=False, soft_wrap=True, width=40, **how)
    console.print(colored(chunk, console), end="")
    return written.getvalue()


@pytest.mark.parametrize(
    "how", [{"force_terminal": False}, {"force_terminal": True, "color_system": None}], ids=["file", "no colors"]
)
def test_without_colors_a_text_is_itself(how: dict[str, object]) -> None:
    text = "".join(TEXTS)
    lengths = [len(each) for each in TEXTS]
    assert shown(Chunk(text, [1] * len(TEXTS), "ARBT" * 2 + "AR", lengths), **how) == text


def test_each_token_has_its_color_and_tabs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = {"force_terminal": True, "color_system": "standard"}
    chunk = Chunk("a\tb\n\tcde", [1, 2, 3, 4, 5], "ARBTF", [2, 2, 2, 1, 1])
    assert shown(chunk, **terminal) == f"{GREEN}a\t{END}{RED}b\n{END}{BLUE}\tc{END}d{GRAY}e{END}"
    assert shown(chunk, no_color=True, **terminal) == chunk.text


HOSTILE = "a\rb\x08\x07 \x1b[2J \x1b]52;c;eA==\x07 \x1b]0;x\x1b\\ \x9b2J \x7f\u202e\n\tc"
HARMLESS = "a^Mb^H^G ^[[2J ^[]52;c;eA==^G ^[]0;x^[\\ <U+009B>2J ^?\u202e\n\tc"


def test_a_terminal_shows_control_characters_and_obeys_none() -> None:
    # As tokens may split them.
    lengths, letters = [1] * len(HOSTILE), "T" * len(HOSTILE)
    chunk = Chunk(HOSTILE, [1] * len(HOSTILE), letters, lengths)
    assert shown(chunk, force_terminal=True, color_system=None) == HARMLESS
    assert shown(chunk, force_terminal=False) == HOSTILE


@pytest.mark.parametrize("kind", ["text", "reasoning", "prompt", "trace"])
def test_no_printer_lets_control_characters_through_to_a_terminal(
    kind: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")
    trace = RoundTrace(0, "none", "off", 0, [], 0, [], [], [], 0, 0, 0, 0)
    reasoning, text = (HOSTILE, "") if kind == "reasoning" else ("", HOSTILE)
    chunk = Chunk(text, [1], "T", [len(text)], reasoning=reasoning, trace=trace)
    printer = TracePrinter(False, True) if kind == "trace" else Printer(False, False, False, with_headers=True)
    printer.begin(Answer(0, 0, PromptRecord(HOSTILE if kind == "prompt" else "x")))
    printer.chunk(chunk)
    written = capsys.readouterr().out
    assert "^[]52" in written
    assert not any((ord(each) < 32 and each not in "\n\t") or 127 <= ord(each) < 160 for each in written)


def test_a_pipe_gets_the_text_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(as_json=False, color=False, stats=False, with_headers=False)
    printer.chunk(Chunk(HOSTILE, [1], "T", [len(HOSTILE)], reasoning=HOSTILE))
    assert capsys.readouterr().out == f"{HOSTILE}\n\n{HOSTILE}"


def test_reasoning_is_dim_and_a_blank_line_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = io.StringIO()
    console = Console(file=written, highlight=False, soft_wrap=True, force_terminal=True, color_system="standard")
    reasoning_printer = ReasoningPrinter(console)
    for chunk in (Chunk("", [1], "T", [0], reasoning="a\rb"), Chunk("c", [2], "T", [1]), Chunk("d", [3], "T", [1])):
        reasoning_printer.chunk(chunk)
        console.print(colored(chunk, console), end="")
    assert written.getvalue() == f"\x1b[2ma^Mb{END}\n\ncd"


def test_cut_reasoning_leaves_nothing_to_the_next_answer(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(as_json=False, color=False, stats=False, with_headers=False)
    for choice, chunk in enumerate((Chunk("", [1], "T", [0], reasoning="a"), Chunk("b", [2], "T", [1]))):
        answer = Answer(0, choice, PromptRecord("x"))
        printer.begin(answer)
        printer.chunk(chunk)
        printer.end(answer)
    assert capsys.readouterr().out == "a\nb\n"
