"""Prints completions as text, JSON lines or traces, and statistics."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TextIO

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from paceline.client import Chunk, Completion, Finish, RoundTrace, TracedDraft
from paceline.prompts import PromptRecord


def tokens_per_second(completions: list[Completion]) -> float:
    finishes = _finishes(completions)
    total_ms = sum(finish.timing.total_ms for finish in finishes)
    return 1e3 * sum(finish.completion_tokens for finish in finishes) / total_ms if total_ms else 0.0


def print_stats(completions: list[Completion], title: str = "rounds") -> None:
    """Prints a table on stderr: sums of counts, means of times."""
    finishes = _finishes(completions)
    table = Table(title=title, title_justify="left")
    table.add_column("figure")
    table.add_column("value", justify="right")
    rounds = sum(finish.speculation.rounds for finish in finishes)
    proposed = sum(finish.speculation.proposed for finish in finishes)
    accepted = sum(finish.speculation.accepted for finish in finishes)
    tokens = sum(finish.completion_tokens for finish in finishes)
    table.add_row("tokens", str(tokens))
    table.add_row("tokens per second", f"{tokens_per_second(completions):.1f}")
    table.add_row("rounds", str(rounds))
    if forced := sum(finish.speculation.forced for finish in finishes):
        table.add_row("forced", f"{forced} ({forced / tokens:.0%})")
    if proposed:
        table.add_row("accepted / proposed", f"{accepted} / {proposed} ({accepted / proposed:.0%})")
        for position, rate in enumerate(_per_position(finishes), 1):
            table.add_row(f"  position {position}", f"{rate:.0%}")
        mean = sum(f.speculation.mean_acceptance_length * f.speculation.rounds for f in finishes) / max(1, rounds)
        table.add_row("mean acceptance length", f"{mean:.2f} tokens")
    for name in ("ttft", "total", "draft", "target", "queued", "rpc"):
        value = sum(getattr(finish.timing, f"{name}_ms") for finish in finishes) / len(finishes)
        label = "time to first token" if name == "ttft" else f"time, {name}"
        table.add_row(label, f"{value:.0f} ms")
    synthetic = [
        f.speculation.synthetic_acceptance_rate for f in finishes if f.speculation.synthetic_acceptance_rate is not None
    ]
    if synthetic:
        table.add_row("synthetic acceptance", f"{synthetic[0]:g} (accepted at random: not real text)")
    if lenience := next((f.speculation.lenience for f in finishes if f.speculation.lenience), None):
        table.add_row("lenience", f"{lenience:g} (the output distribution differs from the target's)")
    table.add_row("seed", ", ".join(str(finish.seed) for finish in finishes[:3]))
    Console(stderr=True).print(table)


def _finishes(completions: list[Completion]) -> list[Finish]:
    return [completion.finish for completion in completions if completion.finish is not None]


def _per_position(finishes: list[Finish]) -> list[float]:
    longest = max(len(finish.speculation.proposed_per_position) for finish in finishes)
    rates = []
    for index in range(longest):
        proposed = [f.speculation.proposed_per_position[index:][:1] for f in finishes]
        accepted = [f.speculation.accepted_per_position[index:][:1] for f in finishes]
        rates.append(sum(map(sum, accepted)) / max(1, sum(map(sum, proposed))))
    return rates


# Name and color of each origin.
ORIGINS = {
    "A": ("accepted draft", "green"), "R": ("recovered", "red"), "B": ("bonus", "blue"), "T": ("target", ""),
    "F": ("forced by the format", "bright_black"),
}  # fmt: skip
HEADER_CHARACTERS = 60


# Control characters but for line ends and tabs, as `less` shows them.
VISIBLE = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127) if chr(code) not in "\n\t"} | {
    code: f"<U+{code:04X}>" for code in range(128, 160)
}


def printable(text: str, console: Console) -> str:
    """Returns what may be written to a console: on a terminal, control characters in a visible form.

    A model could move the cursor with them, name the window or write to the clipboard. Files get the text as it is.
    """
    return text.translate(VISIBLE) if console.is_terminal or console.file.isatty() else text


def colored(chunk: Chunk, console: Console) -> Segments:
    """Colors tokens by origin. Returns Segments, since Text expands tabs and leaves characters out."""
    parts = ((printable(text, console), ORIGINS[origin][1]) for text, origin in chunk.parts)
    return Segments(Segment(text, Style.parse(style)) for text, style in parts)


class ReasoningPrinter:
    """Prints an answer's reasoning in gray, and a blank line before what follows it."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._is_inside = False

    def chunk(self, chunk: Chunk) -> None:
        """Call before the chunk's text is printed."""
        if chunk.reasoning:
            self._is_inside = True
            reasoning = Segment(printable(chunk.reasoning, self._console), Style.parse("dim"))
            self._console.print(Segments([reasoning]), end="")
        if chunk.text and self._is_inside:
            self._is_inside = False
            self._console.print("\n")


def legend(has_format: bool = False) -> Text:
    shown = [each for letter, each in ORIGINS.items() if letter != "F" or has_format]
    names = (Text(f"{name} ({style or 'plain'})", style) for name, style in shown)
    return Text(", ").join(names)


@dataclass(frozen=True, slots=True)
class Answer:
    # Index of the prompt.
    index: int
    # Index of the sample.
    choice: int
    record: PromptRecord
    completion: Completion = field(default_factory=Completion)


class Printer:
    """Prints completions in the order of prompts and samples, streaming the first unfinished one."""

    def __init__(self, as_json: bool, color: bool, stats: bool, with_headers: bool, has_format: bool = False) -> None:
        """`color` needs a terminal or FORCE_COLOR. `with_headers`: print a line before each completion."""
        self._as_json = as_json
        self._stats = stats
        self._with_headers = with_headers and not as_json
        self._console = Console(highlight=False, soft_wrap=True)
        self._color = color and not as_json and self._console.is_terminal and not self._console.no_color
        self._reasoning = ReasoningPrinter(self._console)
        self._is_first = True
        if self._color:
            Console(stderr=True, highlight=False, soft_wrap=True).print(legend(has_format))

    def begin(self, answer: Answer) -> None:
        # The answer before may have been cut inside its reasoning.
        self._reasoning = ReasoningPrinter(self._console)
        if not self._with_headers:
            return
        words = " ".join(answer.record.text.split())
        if len(words) > HEADER_CHARACTERS:
            cut = words[: HEADER_CHARACTERS + 1]
            # Cut at a space if there is one.
            words = (cut.rpartition(" ")[0] or cut[:-1]) + "…"
        sample = f", sample {answer.choice + 1}" if answer.choice else ""
        print("" if self._is_first else "\n", end="")
        print(f"--- {answer.index + 1}{sample}: {printable(words, self._console)}", flush=True)
        self._is_first = False

    def chunk(self, chunk: Chunk) -> None:
        if self._as_json:
            return
        self._reasoning.chunk(chunk)
        if self._color:
            self._console.print(colored(chunk, self._console), end="")
        else:
            print(printable(chunk.text, self._console), end="", flush=True)

    def end(self, answer: Answer) -> None:
        if self._as_json:
            print(json.dumps(as_record(answer)), flush=True)
        else:
            print(flush=True)
        if self._stats:
            print_stats([answer.completion])


def as_record(answer: Answer) -> dict[str, Any]:
    completion, finish = answer.completion, answer.completion.finish
    assert finish is not None
    return {
        "index": answer.index,
        **({} if answer.record.id is None else {"id": answer.record.id}),
        "choice": answer.choice,
        "text": completion.text,
        **({"reasoning": completion.reasoning} if completion.reasoning else {}),
        "token_ids": completion.token_ids,
        "origins": completion.origins,
        **({"logprobs": [asdict(each) for each in completion.logprobs]} if completion.logprobs else {}),
        "finish_reason": finish.reason,
        "usage": {
            "prompt_tokens": finish.prompt_tokens,
            "cached_prompt_tokens": finish.cached_prompt_tokens,
            "completion_tokens": finish.completion_tokens,
        },
        "speculation": asdict(finish.speculation),
        "timing": asdict(finish.timing),
        "seed": finish.seed,
    }


# Sign and color of each kind of token in a trace.
ACCEPTED, REJECTED, CORRECTED, OWN, UNDECIDED = ("+", "green"), ("-", "red"), (">", "blue"), ("*", ""), ("~", "dim")
FORCED = ("=", "dim")
LEGEND = {
    ACCEPTED: "accepted draft",
    REJECTED: "rejected draft",
    CORRECTED: "the target's correction",
    OWN: "the target's next token",
    UNDECIDED: "undecided draft",
    FORCED: "forced by the format",
}


class TracePrinter(Printer):
    """Prints a line per round instead of the text (2211.17192, figure 1)."""

    def __init__(self, stats: bool, with_headers: bool, has_format: bool = False) -> None:
        super().__init__(as_json=False, color=False, stats=stats, with_headers=with_headers)
        self._lines = Console(highlight=False, soft_wrap=True)
        shown = [each for each in LEGEND.items() if each[0] != FORCED or has_format]
        names = (Text.assemble((f"{kind[0]} {name}", kind[1])) for kind, name in shown)
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(", ").join(names))

    def chunk(self, chunk: Chunk) -> None:
        self._lines.print(line(chunk))


def line(chunk: Chunk) -> Text:
    trace = _trace_of(chunk)
    done = [draft for draft in trace.proposed if draft.p is not None]
    figures = [f"{name} {_row([getattr(draft, name) for draft in done])}" for name in ("q", "p", "r") if done]
    if trace.entropies:
        allowed = " ".join(map(str, trace.allowed_draft_tokens))
        figures.append(f"H {_row(trace.entropies)} | smoothed {_row(trace.smoothed_entropies)} | allows {allowed}")
    times = {"draft": trace.draft_us, "target": trace.target_us, "queued": trace.queued_us, "rpc": trace.rpc_us}
    figures.append(", ".join(f"{name} {us / 1e3:.1f}" for name, us in times.items()) + " ms")
    who = trace.drafter if trace.proposed else trace.reason
    head = f"{trace.round:>4} | k {trace.draft_tokens:<2} {who} | "
    return Text.assemble(head, Text(" ").join(_tokens(chunk, trace)), " | ", " | ".join(figures))


def write_record(file: TextIO, answer: Answer, chunk: Chunk) -> None:
    record = {
        "index": answer.index,
        "choice": chunk.index,
        **asdict(_trace_of(chunk)),
        "token_ids": chunk.token_ids,
        "text": chunk.text,
    }
    print(json.dumps(record), file=file, flush=True)


def _tokens(chunk: Chunk, trace: RoundTrace) -> list[Text]:
    accepted, rest = trace.proposed[: trace.num_accepted], trace.proposed[trace.num_accepted :]
    found = [_token(ACCEPTED, draft.text) for draft in accepted]
    # The target's own token; only forced tokens follow it.
    own = next((index for index, origin in enumerate(chunk.origins) if origin in "RBT"), None)
    if own is None:
        # A draft ended the text.
        return found + [_token(UNDECIDED, draft.text) for draft in rest]
    text = _own_text(chunk, trace, own)
    forced = [_token(FORCED, part) for part, origin in chunk.parts if origin == "F"]
    if not rest:
        return [*found, _token(OWN, text), *forced]
    undecided = [_token(UNDECIDED, draft.text) for draft in rest[1:]]
    return [*found, _token(REJECTED, rest[0].text), _token(CORRECTED, text), *forced, *undecided]


def _own_text(chunk: Chunk, trace: RoundTrace, own: int) -> str:
    rejected: TracedDraft | None = next(iter(trace.proposed[trace.num_accepted :]), None)
    if rejected is not None and rejected.target_text is not None:
        return rejected.target_text
    return [text for text, _ in chunk.parts][own] or f"[{chunk.token_ids[own]}]"


def _token(kind: tuple[str, str], text: str) -> Text:
    shown = text.replace("\\", "\\\\").replace("\n", "\\n").replace("\t", "\\t").replace("\r", "\\r")
    return Text(kind[0] + shown.replace(" ", "·").translate(VISIBLE), kind[1])


def _row(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _trace_of(chunk: Chunk) -> RoundTrace:
    assert chunk.trace is not None, "it was asked for"
    return chunk.trace
