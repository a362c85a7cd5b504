"""Figures 2, 3 and 4 of the paper: theory's curves with measurements."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.paper.speeds import Speed
from paceline.theory import best_k, operations, speedup, tokens_per_round

GAMMAS = (1, 3, 5, 7, 10)
COSTS = (0.01, 0.02, 0.05, 0.1, 0.5)
LONGEST_GAMMA = 30
ALPHAS = [step / 100 for step in range(100)]
# Apart in shape and in shade: a picture may be printed in gray.
LINES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))
MARKS = {"draft model": "o", "target in int8": "s", "n-gram look-up": "^", "context copy": "v"}


def new_figure(width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save(figure: Figure, folder: Path, name: str) -> None:
    """Writes PNG and SVG, deterministically."""
    figure.savefig(folder / f"{name}.png", dpi=110)
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})


def draw_figure_2(folder: Path, speeds: Sequence[Speed]) -> None:
    """Tokens per target run against alpha."""
    figure = new_figure(8, 5)
    axes = figure.subplots()
    for gamma, line in zip(GAMMAS, LINES, strict=True):
        axes.plot(ALPHAS, [tokens_per_round(alpha, gamma) for alpha in ALPHAS], linestyle=line, label=f"gamma {gamma}")
    for each in _drafted(speeds):
        axes.plot(each.alpha.mean, each.tokens_a_run, MARKS[each.drafter], color="black", markersize=4)
        axes.annotate(
            str(each.gamma), (each.alpha.mean, each.tokens_a_run), fontsize=6, textcoords="offset points", xytext=(4, 2)
        )
    _legend_marks(axes, speeds)
    axes.set(
        xlabel="alpha",
        ylabel="tokens of a run",
        title="Figure 2: tokens of a run of the target (points: measured, with gamma)",
    )
    axes.legend()
    save(figure, folder, "figure_2")


def draw_figure_3(folder: Path, speeds: Sequence[Speed]) -> None:
    """The best gamma against alpha, by cost."""
    figure = new_figure(8, 5)
    axes = figure.subplots()
    for cost, line in zip(COSTS, LINES, strict=True):
        best = [best_k(alpha, cost, longest=LONGEST_GAMMA) for alpha in ALPHAS]
        axes.step(ALPHAS, best, where="post", linestyle=line, label=f"c = {cost:g}")
    for each in fastest(speeds):
        axes.plot(each.alpha.mean, each.gamma, MARKS[each.drafter], color="black", markersize=4)
        axes.annotate(
            f"c {each.c:.2f}", (each.alpha.mean, each.gamma), fontsize=6, textcoords="offset points", xytext=(4, 2)
        )
    _legend_marks(axes, speeds)
    axes.set(
        xlabel="alpha", ylabel="best gamma", title="Figure 3: the best gamma (points: the fastest of those measured)"
    )
    axes.legend()
    save(figure, folder, "figure_3")


def draw_figure_4(folder: Path, speeds: Sequence[Speed]) -> None:
    """Speed and operations at c = 0 against alpha. Both axes use measured tokens and rows per run, which are equal."""
    figure = new_figure(12, 5)
    left, right = figure.subplots(1, 2)
    for gamma, line in zip(GAMMAS, LINES, strict=True):
        left.plot(ALPHAS, [speedup(alpha, gamma, 0.0) for alpha in ALPHAS], linestyle=line, label=f"gamma {gamma}")
        right.plot(ALPHAS, [operations(alpha, gamma, 0.0) for alpha in ALPHAS], linestyle=line, label=f"gamma {gamma}")
    for each in _drafted(speeds):
        style = {"marker": MARKS[each.drafter], "color": "black", "markersize": 4, "linestyle": ""}
        left.plot([each.alpha.mean], [each.tokens_a_run], **style)
        right.plot([each.alpha.mean], [(each.gamma + 1) / each.tokens_a_run], **style)
    left.set(xlabel="alpha", ylabel="speed over plain decoding", title="Figure 4: speed at c = 0")
    right.set(xlabel="alpha", ylabel="operations over plain decoding", title="and operations")
    right.set_yscale("log")
    _legend_marks(left, speeds)
    for axes in (left, right):
        axes.legend()
    save(figure, folder, "figure_4")


def fastest(speeds: Iterable[Speed]) -> list[Speed]:
    """Returns the fastest measured gamma of each task, drafter and temperature."""
    best: dict[tuple[str, str, int], Speed] = {}
    for each in speeds:
        key = each.task, each.drafter, each.temperature
        if key not in best or each.speed.mean > best[key].speed.mean:
            best[key] = each
    return list(best.values())


def _drafted(speeds: Iterable[Speed]) -> list[Speed]:
    return [each for each in speeds if each.decided]


def _legend_marks(axes: Any, speeds: Iterable[Speed]) -> None:
    for drafter in sorted({each.drafter for each in speeds}):
        axes.plot([], [], MARKS[drafter], color="black", markersize=4, label=drafter)
