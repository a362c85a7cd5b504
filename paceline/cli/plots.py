"""Plots of `paceline plan`.

`write_figures` draws figures 2, 3 and 4 of 2211.17192 at a forecast's costs; at costs of 0, 2 and 4 are the paper's.
"""

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.text import Text

from paceline import theory
from paceline.theory import Forecast

BLOCKS = " ▁▂▃▄▅▆▇█"
HEIGHT = 10
COLUMN_WIDTH = 3
ALPHA_STEP = 0.1


def terminal_plot(values: list[float], best: int) -> Text:
    """Draws a column for each k from 0, `best` in color, and a dotted line at 1."""
    top = max(1.0, *values)
    one_row = int(min(1.0 / top * HEIGHT, HEIGHT - 1))
    plot = Text()
    for row in reversed(range(HEIGHT)):
        labels = {HEIGHT - 1: top, one_row: 1.0}
        plot.append(f"{labels[row]:5.1f}x ┤" if row in labels else f"{'':6} │")
        for k, value in enumerate(values):
            block = BLOCKS[eighths(value / top * HEIGHT - row)]
            gap = "┄" if row == one_row else " "
            filled = block != " "
            plot.append(gap)
            plot.append((block if filled else gap) * (COLUMN_WIDTH - 1), style="bold green" if k == best else "cyan")
        plot.append("\n")
    plot.append(f"{'':6} └" + "─" * (COLUMN_WIDTH * len(values)) + "\n")
    plot.append(f"{'k':>6}  " + "".join(f"{k:>{COLUMN_WIDTH}}" for k in range(len(values))))
    return plot


def eighths(height: float) -> int:
    return round(8 * min(1.0, max(0.0, height)))


def write_png(path: Path, made: Forecast) -> None:
    # Takes a second to import.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 4.6), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    alpha, ks = made.alpha, list(range(made.longest + 1))
    # Different dashes too, for prints in grey.
    curves = {
        max(0.0, alpha - ALPHA_STEP): {"color": "C1", "linestyle": "--"},
        min(1.0, alpha + ALPHA_STEP): {"color": "C4", "linestyle": "-."},
        alpha: {"color": "C0", "marker": "o"},
    }
    for nearby in sorted(curves):
        speeds = [replace(made, alpha=nearby).speed(k) for k in ks]
        left.plot(ks, speeds, label=f"alpha {nearby:.2f}", **curves[nearby])
    best = made.best
    left.plot([best], [made.speed(best)], "o", color="C2", markersize=12, label=f"best k: {best}")
    left.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    left.set(xlabel="k, draft tokens in a round", ylabel="speed over plain decoding", title="What to expect")
    left.set_ylim(bottom=0)
    figure.legend(loc="outside lower left", ncols=4, frameon=False)
    figure.suptitle(f"in target forwards: {made.costs}")
    alphas = [step / 200 for step in range(201)]
    right.step(alphas, [replace(made, alpha=other).best for other in alphas], where="post")
    right.plot([alpha], [best], "o", color="C2", markersize=12)
    right.set(xlabel="alpha, chance that a draft is accepted", ylabel="best k", title="How far to speculate")
    for axis in (left.xaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, format="png", dpi=120)


GAMMAS = (1, 3, 5, 7, 10)
FIGURE_3_COSTS = (0.01, 0.02, 0.05, 0.1)
# The best gamma at alpha 0.99 and c 0.01 is 113.
FIGURE_3_LONGEST = 200
ALPHAS = [percent / 100 for percent in range(100)]
# For prints in grey.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


@dataclass(frozen=True, slots=True)
class Panel:
    title: str
    unit: str
    curves: dict[str, list[float]]
    in_steps: bool = False


def panels(made: Forecast) -> dict[str, list[Panel]]:
    costs, verify = (made.draft_cost, made.wire, made.verify_cost), made.verify_cost
    best = {
        f"c = {c:g}": [float(theory.best_k(alpha, c, made.wire, FIGURE_3_LONGEST, verify)) for alpha in ALPHAS]
        for c in sorted({*FIGURE_3_COSTS, made.draft_cost})
        # Drafts that cost nothing have no best gamma.
        if c + verify > 0
    }
    return {
        "figure2": [Panel("Tokens in a run of the target", "expected tokens", _by_gamma(theory.tokens_per_round))],
        "figure3": [Panel(f"The gamma that is fastest: up to {FIGURE_3_LONGEST}", "gamma", best, in_steps=True)],
        "figure4": [
            Panel(
                f"Speed: {made.costs}",
                "times plain decoding",
                _by_gamma(lambda alpha, gamma: theory.speedup(alpha, gamma, *costs)),
            ),
            Panel(
                f"Arithmetic: draft step {made.operations_cost:.3g} target rows",
                "times plain decoding",
                _by_gamma(lambda alpha, gamma: theory.operations(alpha, gamma, made.operations_cost)),
            ),
        ],
    }


def write_figures(folder: Path, made: Forecast) -> None:
    folder.mkdir(exist_ok=True)
    for name, shown in panels(made).items():
        _write_table(folder / f"{name}.csv", shown)
        drawn = _draw(shown, made.alpha)
        for form in ("png", "svg"):
            # Without a date, so that the same numbers give the same file.
            metadata = {"Date": None} if form == "svg" else None
            drawn.savefig(folder / f"{name}.{form}", format=form, dpi=120, metadata=metadata)


def _by_gamma(value: Any) -> dict[str, list[float]]:
    return {f"gamma = {gamma}": [value(alpha, gamma) for alpha in ALPHAS] for gamma in GAMMAS}


def _write_table(path: Path, shown: list[Panel]) -> None:
    names = [panel.title.split(":")[0].lower() for panel in shown]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["alpha", "curve", *names])
        for name in shown[0].curves:
            for i, alpha in enumerate(ALPHAS):
                writer.writerow([alpha, name, *(f"{panel.curves[name][i]:.6g}" for panel in shown)])


def _draw(shown: list[Panel], own_alpha: float) -> Any:
    # Takes a second to import.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * len(shown), 4.4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, panel in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for dashes, (name, values) in zip(DASHES, panel.curves.items(), strict=False):
            axes.plot(
                ALPHAS, values, label=name, linestyle=dashes, drawstyle="steps-post" if panel.in_steps else "default"
            )
        axes.axvline(own_alpha, color="black", linewidth=0.8, linestyle=":")
        axes.set(xlabel="alpha", ylabel=panel.unit, title=panel.title)
        axes.set_xlim(0, 1)
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)
    return figure
