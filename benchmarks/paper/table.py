"""A table as Markdown and CSV."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.paper.estimators import Estimate

Cell = str | int | float | Estimate | None


@dataclass(frozen=True, slots=True)
class Table:
    """Rows under a heading. `notes` follow it as paragraphs."""

    name: str
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    notes: Sequence[str] = field(default_factory=list)

    def markdown(self) -> str:
        lines = [f"## {self.title}", ""]
        lines += [_line(self.columns), _line(["---"] * len(self.columns))]
        lines += [_line([shown(cell) for cell in row]) for row in self.rows]
        for note in self.notes:
            lines += ["", note]
        return "\n".join(lines)

    def write_csv(self, folder: Path) -> None:
        """Writes FOLDER/NAME.csv. A column of estimates has a second one for their errors."""
        with_errors = {at for row in self.rows for at, cell in enumerate(row) if isinstance(cell, Estimate)}
        with open(folder / f"{self.name}.csv", "w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(
                name
                for at, column in enumerate(self.columns)
                for name in ([column, f"{column}, error"] if at in with_errors else [column])
            )
            for row in self.rows:
                cells: list[str | int | float] = []
                for at, cell in enumerate(row):
                    value, error = cell if isinstance(cell, Estimate) else (cell, None)
                    cells.append(_plain(value))
                    if at in with_errors:
                        cells.append(_plain(error))
                writer.writerow(cells)


def shown(cell: Cell) -> str:
    """Formats a cell."""
    if cell is None:
        return ""
    if isinstance(cell, Estimate):
        return shown(cell.mean) if math.isnan(cell.error) else f"{_number(cell.mean)} ± {_number(cell.error)}"
    return _number(cell) if isinstance(cell, float) else str(cell)


def _number(value: float) -> str:
    if 0 < abs(value) < 0.0005:
        return f"{value:.1e}"
    return f"{value:.3f}" if abs(value) < 1 else f"{value:.2f}"


def _plain(value: str | int | float | None) -> str | int | float:
    return "" if value is None else round(value, 9) if isinstance(value, float) else value


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
