"""Plots speed by alpha against theory."""

from pathlib import Path
from typing import Any

from paceline.theory import speedup


def plot(rows: list[dict[str, Any]], draft_cost: float | None, path: Path) -> None:
    """Plots speed over plain by alpha, one figure per batch size. `draft_cost`: for theory's curves."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    sizes = sorted({row["at_once"] for row in rows})
    figure = Figure(figsize=(5 * len(sizes), 4), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, at_once in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        mine = sorted(
            (row for row in rows if row["at_once"] == at_once and row["k"] != "0"), key=lambda row: row["alpha"]
        )
        for name in dict.fromkeys(row["k"] for row in mine):
            points = [(row["alpha"], row["of_plain"]) for row in mine if row["k"] == name]
            [line] = axes.plot(*zip(*points, strict=True), marker="o", label=f"k = {name}")
            if draft_cost is not None and at_once == 1 and not name.startswith("adaptive"):
                theory = [speedup(alpha, int(name), draft_cost) for alpha, _ in points]
                axes.plot([alpha for alpha, _ in points], theory, linestyle="dashed", color=line.get_color())
        axes.set(title=f"{at_once} at once", xlabel="alpha", ylabel="speed over plain")
        axes.legend()
    figure.savefig(path, format="png", dpi=120)
