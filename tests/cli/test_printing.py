"""An answer in colours is the answer, to be copied from the terminal."""

import io

import pytest
from rich.console import Console

from paceline.cli.printing import Answer, Printer, ThoughtPrinter, coloured
from paceline.client import Piece
from paceline.prompts import PromptRecord

TEXTS = [
    "all:\n", "\tcc\t-o x", "\t", "\n", "日本語 " * 12, "é\u0301👩\u200d👩\u200d👧", "[bold]x[/bold] :smile: ", " end  ", "x" * 100, "",
]  # fmt: skip
GREEN, RED, BLUE, GREY, END = "\x1b[32m", "\x1b[31m", "\x1b[34m", "\x1b[90m", "\x1b[0m"


def shown(piece: Piece, **how: object) -> str:
    written = io.StringIO()
    console = Console(file=written, highlight=False, soft_wrap=True, width=40, **how)
    console.print(coloured(piece), end="")
    return written.getvalue()


@pytest.mark.parametrize(
    "how", [{"force_terminal": False}, {"force_terminal": True, "color_system": None}], ids=["file", "no colours"]
)
def test_without_colours_a_text_is_itself(how: dict[str, object]) -> None:
    text = "".join(TEXTS)
    lengths = [len(each) for each in TEXTS]
    assert shown(Piece(text, [1] * len(TEXTS), "ARBT" * 2 + "AR", lengths), **how) == text


def test_each_token_has_its_colour_and_tabs_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = {"force_terminal": True, "color_system": "standard"}
    piece = Piece("a\tb\n\tcde", [1, 2, 3, 4, 5], "ARBTF", [2, 2, 2, 1, 1])
    assert shown(piece, **terminal) == f"{GREEN}a\t{END}{RED}b\n{END}{BLUE}\tc{END}d{GREY}e{END}"
    assert shown(piece, no_color=True, **terminal) == piece.text


def test_what_would_move_the_cursor_is_left_out() -> None:
    assert shown(Piece("a\rb\x08\x07c", [1], "T", [6])) == "abc"


def test_a_thought_is_dim_and_a_blank_line_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    written = io.StringIO()
    console = Console(file=written, highlight=False, soft_wrap=True, force_terminal=True, color_system="standard")
    thoughts = ThoughtPrinter(console)
    for piece in (Piece("", [1], "T", [0], reasoning="a\rb"), Piece("c", [2], "T", [1]), Piece("d", [3], "T", [1])):
        thoughts.piece(piece)
        console.print(coloured(piece), end="")
    assert written.getvalue() == f"\x1b[2mab{END}\n\ncd"


def test_a_cut_thought_leaves_nothing_to_the_next_answer(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer(as_json=False, color=False, stats=False, with_headers=False)
    for choice, piece in enumerate((Piece("", [1], "T", [0], reasoning="a"), Piece("b", [2], "T", [1]))):
        answer = Answer(0, choice, PromptRecord("x"))
        printer.begin(answer)
        printer.piece(piece)
        printer.end(answer)
    assert capsys.readouterr().out == "a\nb\n"
