"""The results as a table and as JSON."""

from statistics import median
from typing import Any

from benchmarks.peers.contest import Row

# Speeds and texts are compared with these, if they ran.
BASE = "transformers plain"
OWN = "paceline plain"


class Report:
    def __init__(self, rows: list[Row], eos_token_id: int | None) -> None:
        """Compares texts up to the end-of-sequence token."""
        self._rows = rows
        self._eos_token_id = eos_token_id

    def table(self) -> str:
        """Has a block of lines per batch size."""
        blocks = []
        for at_once in dict.fromkeys(row.at_once for row in self._rows):
            rows = [row for row in self._rows if row.at_once == at_once]
            blocks.append("\n".join([_head(at_once, self._base(rows[0]).name), *map(self._line, rows)]))
        return "\n\n".join(blocks)

    def figures(self) -> list[dict[str, Any]]:
        return [
            {
                "name": row.name,
                "at_once": row.at_once,
                "tokens": row.tokens,
                "tokens_per_s": row.tokens_per_s,
                "times_base": self._times_base(row),
                "median_times_base": self._median_times_base(row),
                "same_as_transformers": self._same(row, BASE),
                "same_as_paceline": self._same(row, OWN),
                "seconds": row.seconds,
                "others": row.others,
                "token_ids": row.outputs,
            }
            for row in self._rows
        ]

    def _line(self, row: Row) -> str:
        same = [_of(self._same(row, name), len(row.outputs)) for name in (BASE, OWN)]
        return (
            f"{row.name:30s} {row.tokens:7d} {row.tokens_per_s:9.1f} {self._times_base(row):8.2f}"
            f" {self._median_times_base(row):8.2f} {same[0]:>15s} {same[1]:>11s}"
        )

    def _base(self, row: Row) -> Row:
        """Returns the row that speeds are relative to: transformers', or the first with the same batch size."""
        rows = [other for other in self._rows if other.at_once == row.at_once]
        return next((other for other in rows if other.name == BASE), rows[0])

    def _times_base(self, row: Row) -> float:
        return row.tokens_per_s / self._base(row).tokens_per_s

    def _median_times_base(self, row: Row) -> float:
        """Returns the median ratio over groups, which a disturbed turn does not move."""
        return median(base / own for base, own in zip(self._base(row).seconds, row.seconds, strict=True))

    def _same(self, row: Row, name: str) -> int | None:
        """Counts outputs equal to the row `name`'s with the smallest batch. None if it did not run."""
        rows = sorted((other for other in self._rows if other.name == name), key=lambda other: other.at_once)
        if not rows:
            return None
        return sum(map(self._equal, row.outputs, rows[0].outputs))

    def _equal(self, output: list[int], reference: list[int]) -> bool:
        eos = self._eos_token_id
        end = reference.index(eos) if eos is not None and eos in reference else len(reference)
        return output[:end] == reference[:end]


def _head(at_once: int, base: str) -> str:
    when = "one at a time" if at_once == 1 else f"{at_once} at once"
    return (
        f"{when}; x: times the speed of {base}, of the totals and the median of the turns\n"
        f"{'':30s} {'tokens':>7s} {'tokens/s':>9s} {'x':>8s} {'median x':>8s} {'= transformers':>15s} {'= paceline':>11s}"
    )


def _of(count: int | None, total: int) -> str:
    return "-" if count is None else f"{count} of {total}"
