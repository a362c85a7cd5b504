"""Plots of `paceline plan`."""

from dataclasses import replace
from pathlib import Path

from rich.text import Text

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
    # Different dashes too, for prints in gray.
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
    figure.suptitle(f"in target forward passes: {made.costs}")
    alphas = [step / 200 for step in range(201)]
    right.step(alphas, [replace(made, alpha=other).best for other in alphas], where="post")
    right.plot([alpha], [best], "o", color="C2", markersize=12)
    right.set(xlabel="alpha, chance that a draft is accepted", ylabel="best k", title="How far to speculate")
    for axis in (left.xaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, format="png", dpi=120)
