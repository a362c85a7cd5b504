"""Rounds as a reader sees them: a line for each run of the target (2211.17192, figure 1), or a JSON object."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import TextIO

from rich.console import Console
from rich.text import Text

from paceline.cli.printing import Answer, Printer
from paceline.client import Piece, RoundTrace, TracedDraft

# Sign and colour of each kind of token: either is enough to tell them apart.
ACCEPTED, REJECTED, CORRECTED, OWN, UNDECIDED = ("+", "green"), ("-", "red"), (">", "blue"), ("*", ""), ("~", "dim")
LEGEND = {
    ACCEPTED: "accepted draft",
    REJECTED: "rejected draft",
    CORRECTED: "the target's correction",
    OWN: "the target's next token",
    UNDECIDED: "draft that was not decided",
}


class TracePrinter(Printer):
    """Prints rounds in place of the text."""

    def __init__(self, stats: bool, with_headers: bool) -> None:
        super().__init__(as_json=False, color=False, stats=stats, with_headers=with_headers)
        self._lines = Console(highlight=False, soft_wrap=True)
        names = (Text.assemble((f"{kind[0]} {name}", kind[1])) for kind, name in LEGEND.items())
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(", ").join(names))

    def piece(self, piece: Piece) -> None:
        self._lines.print(line(piece))


def line(piece: Piece) -> Text:
    """One run of the target."""
    trace = _trace_of(piece)
    done = [draft for draft in trace.proposed if draft.p is not None]
    figures = [f"{name} {_row([getattr(draft, name) for draft in done])}" for name in ("q", "p", "r") if done]
    if trace.entropies:
        allowed = " ".join(map(str, trace.allowed_draft_tokens))
        figures.append(f"H {_row(trace.entropies)} | smoothed {_row(trace.smoothed_entropies)} | allows {allowed}")
    times = {"draft": trace.draft_us, "target": trace.target_us, "queued": trace.queued_us, "wire": trace.wire_us}
    figures.append(", ".join(f"{name} {us / 1e3:.1f}" for name, us in times.items()) + " ms")
    who = trace.drafter if trace.proposed else trace.reason
    head = f"{trace.round:>4} | k {trace.draft_tokens:<2} {who} | "
    return Text.assemble(head, Text(" ").join(_tokens(piece, trace)), " | ", " | ".join(figures))


def write_record(file: TextIO, answer: Answer, piece: Piece) -> None:
    """One line of `--trace-json`."""
    record = {
        "index": answer.index,
        "choice": piece.index,
        **asdict(_trace_of(piece)),
        "token_ids": piece.token_ids,
        "text": piece.text,
    }
    print(json.dumps(record), file=file, flush=True)


def _tokens(piece: Piece, trace: RoundTrace) -> list[Text]:
    """The drafts, and behind those that were accepted the target's own token, where the round has one."""
    accepted, rest = trace.proposed[: trace.num_accepted], trace.proposed[trace.num_accepted :]
    found = [_token(ACCEPTED, draft.text) for draft in accepted]
    if len(piece.token_ids) == trace.num_accepted:
        # The text ended with a draft.
        return found + [_token(UNDECIDED, draft.text) for draft in rest]
    own = _own_text(piece, trace)
    if not rest:
        return [*found, _token(OWN, own)]
    undecided = [_token(UNDECIDED, draft.text) for draft in rest[1:]]
    return [*found, _token(REJECTED, rest[0].text), _token(CORRECTED, own), *undecided]


def _own_text(piece: Piece, trace: RoundTrace) -> str:
    """Of the target's own token: what it added to the text, or its id where it added nothing yet."""
    rejected: TracedDraft | None = next(iter(trace.proposed[trace.num_accepted :]), None)
    if rejected is not None and rejected.target_text is not None:
        return rejected.target_text
    return [text for text, _ in piece.parts][-1] or f"[{piece.token_ids[-1]}]"


def _token(kind: tuple[str, str], text: str) -> Text:
    """Spaces and ends of lines can be seen, and take no line of their own."""
    shown = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return Text(kind[0] + shown.replace(" ", "·"), kind[1])


def _row(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _trace_of(piece: Piece) -> RoundTrace:
    assert piece.trace is not None, "it was asked for"
    return piece.trace
