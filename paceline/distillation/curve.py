"""The learning curve of a training, as a table and a picture."""

import csv
from collections.abc import Sequence
from pathlib import Path

from paceline.distillation.training.loss import Agreement


class Curve:
    """FOLDER/curve.csv and FOLDER/curve.png. Existing rows are kept."""

    def __init__(self, folder: Path) -> None:
        self._csv, self._png = folder / "curve.csv", folder / "curve.png"
        self.rows: list[dict[str, float]] = []
        if self._csv.exists():
            with open(self._csv, newline="") as file:
                rows = list(csv.DictReader(file))
            self.rows = [
                {name: int(value) if name == "tokens" else float(value) for name, value in row.items()} for row in rows
            ]

    def add(self, tokens: int, loss: float, found: Sequence[Agreement]) -> None:
        """Adds a row. `loss`: the mean over the steps after the last row; `found`: by depth, which has columns of its own
        from the second on."""
        row = {"tokens": tokens, "loss": round(loss, 4)}
        for depth, each in enumerate(found):
            suffix = f"_{depth + 1}" if depth else ""
            row |= {f"alpha{suffix}": round(each.mean_alpha, 4), f"top_1{suffix}": round(each.mean_top_1, 4)}
        self.rows.append(row)
        with open(self._csv, "w", newline="") as file:
            writer = csv.DictWriter(file, row.keys())
            writer.writeheader()
            writer.writerows(self.rows)
        self._draw()

    def _draw(self) -> None:
        # Imported here, because the import takes a second and only pictures need it.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        tokens = [row["tokens"] / 1e6 for row in self.rows]
        left.plot(tokens[1:], [row["loss"] for row in self.rows][1:])
        left.set(xlabel="million tokens seen", ylabel="training loss")
        right.plot(tokens, [row["alpha"] for row in self.rows], label="alpha, at least")
        for name in self.rows[-1]:
            if name.startswith("top_1"):
                label = "same likeliest token" + name.removeprefix("top_1").replace("_", ", of token ")
                right.plot(tokens, [row[name] for row in self.rows], label=label)
        right.set(xlabel="million tokens seen", ylabel="on held-out text", ylim=(0, 1))
        right.legend()
        figure.savefig(self._png, format="png", dpi=120)
