"""Figures 1 and 5 of the paper, from traces of real rounds."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.patches import Patch

from benchmarks.paper.figures import new_figure, save

GREEN, RED, BLUE = "#1a7f37", "#c62828", "#1f4fbf"
# Characters of a line, and rounds of a diagram.
LINE_CHARACTERS, DIAGRAM_MS = 118, 150.0
COLORS = {"draft step": "#4f81ff", "target run": "#8e5cc2", "messages and waiting": "#d8d8d8"}
Round = dict[str, Any]


def draw_figure_1(folder: Path, rounds: Sequence[Round]) -> None:
    """A line a run of the target: accepted drafts green, the rejected one red, its correction blue."""
    figure = new_figure(8, 0.2 * len(rounds) + 0.6)
    axes = figure.subplots()
    axes.set(xlim=(0, LINE_CHARACTERS), ylim=(len(rounds), -1))
    axes.axis("off")
    for line, each in enumerate(rounds):
        at = 0
        for text, color in parts_of(each):
            shown = text.replace("\n", "⏎").replace("$", r"\$")
            axes.text(at, line, shown, color=color, family="monospace", fontsize=8, va="center")
            at += len(text)
    axes.set_title(
        "Figure 1: each line is a run of the target; green accepted, red rejected, blue its correction", fontsize=9
    )
    save(figure, folder, "figure_1")


def parts_of(each: Round) -> list[tuple[str, str]]:
    """The texts of a round with their colors."""
    accepted = each["num_accepted"]
    found = [(draft["text"], GREEN) for draft in each["proposed"][:accepted]]
    own = each["texts"][accepted:]
    if each["origins"].endswith("R"):
        found.append((each["proposed"][accepted]["text"], RED))
        return found + [(text, BLUE) for text in own]
    return found + [(text, "black") for text in own]


def draw_figure_5(folder: Path, traces: dict[str, Sequence[Round]]) -> None:
    """Rounds over time, a row for each way."""
    figure = new_figure(12, 2.6)
    axes = figure.subplots()
    for row, rounds in enumerate(traces.values()):
        now = 0.0
        for each in rounds:
            if each["round"] == 0 or now > DIAGRAM_MS:
                continue
            steps = max(1, len(each["proposed"]))
            for _ in range(steps if each["draft_us"] else 0):
                width = each["draft_us"] / steps / 1e3
                _block(axes, row, now, width, COLORS["draft step"])
                now += width
            _block(axes, row, now, each["target_us"] / 1e3, COLORS["target run"])
            now += each["target_us"] / 1e3
            rest = (each["rpc_us"] + each["queued_us"]) / 1e3
            _block(axes, row, now, rest, COLORS["messages and waiting"])
            now += rest
    axes.set(xlim=(0, DIAGRAM_MS), ylim=(len(traces) - 0.4, -0.6), xlabel="ms behind the prompt's round")
    axes.set_yticks(range(len(traces)), list(traces))
    axes.legend(handles=[Patch(color=color, label=name) for name, color in COLORS.items()], ncols=3, fontsize=8,
                loc="lower center", bbox_to_anchor=(0.5, 1.0))  # fmt: skip
    save(figure, folder, "figure_5")


def _block(axes: Any, row: int, start: float, width: float, color: str) -> None:
    axes.barh(row, width, left=start, height=0.7, color=color, edgecolor="white", linewidth=0.4)
