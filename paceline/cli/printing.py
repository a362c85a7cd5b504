"""Completions on stdout: as text, coloured or not, or as JSON lines."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.control import strip_control_codes
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from paceline.cli.report import print_stats
from paceline.client import Completion, Piece
from paceline.prompts import PromptRecord

# Origins as colours: accepted drafts stand out, the target's own tokens look plain.
ORIGINS = {"A": ("accepted draft", "green"), "R": ("recovered", "red"), "B": ("bonus", "blue"), "T": ("target", "")}
HEADER_CHARACTERS = 60


def coloured(piece: Piece) -> Segments:
    """A round's text, each token in the colour of where it comes from. Not as a Text, which makes spaces of tabs."""
    parts = ((strip_control_codes(text), ORIGINS[origin][1]) for text, origin in piece.parts)
    return Segments(Segment(text, Style.parse(style)) for text, style in parts)


def legend() -> Text:
    """Which colour is whose."""
    names = (Text(f"{name} ({style or 'plain'})", style) for name, style in ORIGINS.values())
    return Text(", ").join(names)


@dataclass(frozen=True, slots=True)
class Answer:
    """One sample of one prompt."""

    # Of the prompt in its file.
    index: int
    # Of the sample.
    choice: int
    record: PromptRecord
    completion: Completion = field(default_factory=Completion)


class Printer:
    """Prints completions in the order of the prompts and their samples, the first unfinished one as it streams."""

    def __init__(self, as_json: bool, color: bool, stats: bool, with_headers: bool) -> None:
        """`color`: where stdout is a terminal, or FORCE_COLOR is set. `with_headers`: a line before each completion."""
        self._as_json = as_json
        self._stats = stats
        self._with_headers = with_headers and not as_json
        self._console = Console(highlight=False, soft_wrap=True)
        self._color = color and not as_json and self._console.is_terminal and not self._console.no_color
        self._is_first = True
        if self._color:
            Console(stderr=True, highlight=False, soft_wrap=True).print(legend())

    def begin(self, answer: Answer) -> None:
        """The completion that comes next."""
        if not self._with_headers:
            return
        words = " ".join(answer.record.text.split())
        if len(words) > HEADER_CHARACTERS:
            cut = words[: HEADER_CHARACTERS + 1]
            # At a space, if there is one.
            words = (cut.rpartition(" ")[0] or cut[:-1]) + "…"
        sample = f", sample {answer.choice + 1}" if answer.choice else ""
        print("" if self._is_first else "\n", end="")
        print(f"--- {answer.index + 1}{sample}: {words}", flush=True)
        self._is_first = False

    def piece(self, piece: Piece) -> None:
        """Part of the completion whose turn it is."""
        if self._as_json or not piece.text:
            return
        if self._color:
            self._console.print(coloured(piece), end="")
        else:
            print(piece.text, end="", flush=True)

    def end(self, answer: Answer) -> None:
        """The completion whose turn it was is whole."""
        if self._as_json:
            print(json.dumps(as_record(answer)), flush=True)
        else:
            print(flush=True)
        if self._stats:
            print_stats([answer.completion])


def as_record(answer: Answer) -> dict[str, Any]:
    """One line of `--json`."""
    completion, finish = answer.completion, answer.completion.finish
    assert finish is not None
    return {
        "index": answer.index,
        **({} if answer.record.id is None else {"id": answer.record.id}),
        "choice": answer.choice,
        "text": completion.text,
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
