"""Figures 2, 3 and 4 of Leviathan, Kalman, Matias (2211.17192) at a forecast's costs, each with its numbers.

At `--draft-cost 0` without other costs, figures 2 and 4 are the paper's; figure 3 has curves for costs of its own.
"""

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import theory
from paceline.cli.forecast import Forecast

GAMMAS = (1, 3, 5, 7, 10)
FIGURE_3_COSTS = (0.01, 0.02, 0.05, 0.1)
# The best gamma at alpha 0.99 and c 0.01 is 113.
FIGURE_3_LONGEST = 200
ALPHAS = [percent / 100 for percent in range(100)]
# Apart in dashes too: a picture may be printed in grey.
DASHES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


@dataclass(frozen=True, slots=True)
class Panel:
    """A picture of curves over ALPHAS, by the names that the legend and the table have."""

    title: str
    unit: str
    curves: dict[str, list[float]]
    # Steps between whole numbers.
    in_steps: bool = False


def panels(made: Forecast) -> dict[str, list[Panel]]:
    """What each figure shows, by the name of its files."""
    costs, verify = (made.draft_cost, made.wire, made.verify_cost), made.verify_cost
    best = {
        f"c = {c:g}": [float(theory.best_k(alpha, c, made.wire, FIGURE_3_LONGEST, verify)) for alpha in ALPHAS]
        for c in sorted({*FIGURE_3_COSTS, made.draft_cost})
        # A draft that costs nothing has no best gamma: each further one is faster.
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
    """Writes each figure as .png and .svg, and its numbers as .csv. Makes the folder. Raises OSError."""
    folder.mkdir(exist_ok=True)
    for name, shown in panels(made).items():
        _write_table(folder / f"{name}.csv", shown)
        drawn = _draw(shown, made.alpha)
        for form in ("png", "svg"):
            # No date in it: the same numbers are the same file.
            metadata = {"Date": None} if form == "svg" else None
            drawn.savefig(folder / f"{name}.{form}", format=form, dpi=120, metadata=metadata)


def _by_gamma(value: Any) -> dict[str, list[float]]:
    """A curve for each gamma. `value`: of alpha and gamma."""
    return {f"gamma = {gamma}": [value(alpha, gamma) for alpha in ALPHAS] for gamma in GAMMAS}


def _write_table(path: Path, shown: list[Panel]) -> None:
    """A row for each alpha and curve: the panels' values, one column each."""
    names = [panel.title.split(":")[0].lower() for panel in shown]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["alpha", "curve", *names])
        for name in shown[0].curves:
            for i, alpha in enumerate(ALPHAS):
                writer.writerow([alpha, name, *(f"{panel.curves[name][i]:.6g}" for panel in shown)])


def _draw(shown: list[Panel], own_alpha: float) -> Any:
    """The panels side by side, with a line at the forecast's alpha."""
    # A second to import, and only pictures need it.
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
