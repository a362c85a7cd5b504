"""Prompts from a file, as benchmarks take them."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Prompt:
    """A first turn, and what kind of prompt it is."""

    text: str
    category: str


def read_prompts(path: Path, count: int) -> list[Prompt]:
    """`count` of the file's first turns, evenly spread: files go by category."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    chosen = [rows[i * len(rows) // count] for i in range(min(count, len(rows)))]
    return [Prompt(row["turns"][0], str(row.get("category", "prompts"))) for row in chosen]
