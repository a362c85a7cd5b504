"""The learning curve of a training, as a table and a picture."""

import csv
from pathlib import Path

from paceline.distillation.training.loss import Agreement

COLUMNS = ("tokens", "loss", "alpha", "top_1")


class Curve:
    """FOLDER/curve.csv and FOLDER/curve.png. Existing rows are kept."""

    def __init__(self, folder: Path) -> None:
        self._csv, self._png = folder / "curve.csv", folder / "curve.png"
        self.rows: list[dict[str, float]] = []
        if self._csv.exists():
            with open(self._csv, newline="") as file:
                rows = list(csv.DictReader(file))
            self.rows = [{name: float(row[name]) for name in COLUMNS} | {"tokens": int(row["tokens"])} for row in rows]

    def add(self, tokens: int, loss: float, found: Agreement) -> None:
        """Adds a row. `loss`: the mean over the steps after the last row."""
        values = (
            tokens,
            round(loss, 4),
            round(found.alpha / found.num_rows, 4),
            round(found.top_1 / found.num_rows, 4),
        )
        self.rows.append(dict(zip(COLUMNS, values, strict=True)))
        with open(self._csv, "w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS)
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
        right.plot(tokens, [row["top_1"] for row in self.rows], label="same likeliest token")
        right.set(xlabel="million tokens seen", ylabel="on held-out text", ylim=(0, 1))
        right.legend()
        figure.savefig(self._png, format="png", dpi=120)
