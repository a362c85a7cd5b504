"""Results in one JSON file that all parts write to; an aborted part keeps what it wrote. No torch."""

import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "results.json"


class Results:
    def __init__(self, folder: Path, part: str) -> None:
        self._path, self._part = folder / FILE_NAME, part
        self.folder = folder

    def put(self, **figures: Any) -> None:
        """Adds figures and writes the file."""
        everything = self._read()
        everything.setdefault(self._part, {}).update(figures)
        self._write(everything)

    def forget(self) -> None:
        """Drops the part's earlier results."""
        self._write({part: figures for part, figures in self._read().items() if part != self._part})

    def of(self, part: str) -> dict[str, Any]:
        """Returns another part's results."""
        return dict(self._read().get(part, {}))

    def _write(self, everything: dict[str, Any]) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(everything, indent=1) + "\n")
        os.replace(draft, self._path)

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._path.read_text())) if self._path.exists() else {}
