"""Results: one JSON file that all parts write to. A part that is ended leaves what it wrote before. No torch."""

import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "results.json"


class Results:
    """The figures of one part."""

    def __init__(self, folder: Path, part: str) -> None:
        self._path, self._part = folder / FILE_NAME, part
        self.folder = folder

    def put(self, **figures: Any) -> None:
        """Adds figures. They are in the file when this returns."""
        everything = self._read()
        everything.setdefault(self._part, {}).update(figures)
        self._write(everything)

    def forget(self) -> None:
        """Drops what the part found in an earlier run."""
        self._write({part: figures for part, figures in self._read().items() if part != self._part})

    def of(self, part: str) -> dict[str, Any]:
        """What another part has found so far."""
        return dict(self._read().get(part, {}))

    def _write(self, everything: dict[str, Any]) -> None:
        draft = self._path.with_suffix(".new")
        draft.write_text(json.dumps(everything, indent=1) + "\n")
        os.replace(draft, self._path)

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._path.read_text())) if self._path.exists() else {}
