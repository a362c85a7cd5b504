"""Speed-up against k as a picture: of characters for a terminal, of pixels for a file."""

from pathlib import Path

from rich.text import Text

from paceline.theory import best_k, speedup

BLOCKS = " ▁▂▃▄▅▆▇█"
HEIGHT = 10
COLUMN_WIDTH = 3
ALPHA_STEP = 0.1


def terminal_plot(values: list[float], best: int) -> Text:
    """A column for each value, k = 0 first, over a scale from 0; `best` is coloured, and 1 is a dotted line."""
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
    """How much of a character cell a column fills that reaches `height` cells above the cell's foot: 0 to 8."""
    return round(8 * min(1.0, max(0.0, height)))


def write_png(path: Path, alpha: float, c: float, wire: float, longest: int) -> None:
    """Left: speed-up against k, also for alphas nearby. Right: the best k against alpha. Raises OSError."""
    # A second to import, and only pictures need it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2)
    ks = list(range(longest + 1))
    for nearby in sorted({max(0.0, alpha - ALPHA_STEP), alpha, min(1.0, alpha + ALPHA_STEP)}):
        style = {"color": "C0", "marker": "o"} if nearby == alpha else {"color": "C7", "linestyle": "--"}
        left.plot(ks, _curve(ks, nearby, c, wire), label=f"alpha {nearby:.2f}", **style)
    best = best_k(alpha, c, wire, longest)
    left.plot([best], [speedup(alpha, best, c, wire)], "o", color="C2", markersize=12, label=f"best k: {best}")
    left.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    left.set(
        xlabel="k, draft tokens in a round", ylabel="speed over plain decoding", title=f"c {c:.2f}, wire {wire:.2f}"
    )
    left.legend()
    alphas = [step / 200 for step in range(201)]
    right.step(alphas, [best_k(a, c, wire, longest) for a in alphas], where="post")
    right.plot([alpha], [best], "o", color="C2", markersize=12)
    right.set(xlabel="alpha, chance that a draft is accepted", ylabel="best k", title="How far to speculate")
    for axis in (left.xaxis, right.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, format="png", dpi=120)


def _curve(ks: list[int], alpha: float, c: float, wire: float) -> list[float]:
    return [speedup(alpha, k, c, wire) for k in ks]
