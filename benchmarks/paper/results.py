"""Measured parts, one JSON file each, so that an interrupted run resumes."""

import json
import time
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.engine.threads import CORES
from paceline.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class Setup:
    """The subject of a run. Parts of different setups are not mixed."""

    target: str
    target_quantization: str
    draft: str
    prompts: str
    # Minimum number of the target's own tokens at each temperature.
    tokens: int
    seed: int


class Parts:
    """OUT/parts/NAME.json."""

    def __init__(self, out: Path, setup: Setup, again: Collection[str]) -> None:
        """`again`: parts to measure even if they exist."""
        self._folder = out / "parts"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._setup = asdict(setup)
        self._again = again
        self._seen: dict[str, Any] = {}

    def get(self, name: str, measure: Callable[[], Any]) -> Any:
        """Returns the part as JSON. Raises InvalidArgument if the file belongs to another setup."""
        if name not in self._seen:
            path = self._path(name)
            is_due = name in self._again or not path.exists()
            self._seen[name] = self._measured(path, measure) if is_due else self._kept(path)
        return self._seen[name]["value"]

    def has(self, name: str) -> bool:
        return self._path(name).exists()

    def about(self, name: str) -> str:
        """Returns date and machine of a part."""
        part = self._seen[name]
        return f"{part['date']}, {part['machine']}"

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"

    def _measured(self, path: Path, measure: Callable[[], Any]) -> Any:
        print(f"{path.stem}: measuring", flush=True)
        started_s = time.perf_counter()
        part = {"setup": self._setup, "date": time.strftime("%Y-%m-%d"), "machine": machine(), "value": measure()}
        text = json.dumps(part, ensure_ascii=False, separators=(",", ":"))
        unfinished = path.with_suffix(".tmp")
        unfinished.write_text(text + "\n")
        unfinished.replace(path)
        print(f"{path.stem}: {time.perf_counter() - started_s:.0f} s", flush=True)
        # From the text, so that a kept part and a new one are the same to all who read it.
        return json.loads(text)

    def _kept(self, path: Path) -> Any:
        part = json.loads(path.read_text())
        if part["setup"] != self._setup:
            differs = [key for key, value in self._setup.items() if part["setup"].get(key) != value]
            problem = f"was measured with another {', '.join(differs)}: give another --out, or --again {path.stem}"
            raise InvalidArgument(str(path), problem)
        print(f"{path.stem}: there, of {part['date']}", flush=True)
        return part


def machine() -> str:
    """Returns the processor and this process's cores."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else 'unknown processor'}, {len(CORES)} cores"
