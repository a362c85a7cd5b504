"""Prompt files for benchmarks."""

from pathlib import Path

from paceline.prompts import PromptRecord, read_prompts


def spread_prompts(path: Path, count: int) -> list[PromptRecord]:
    """Returns `count` prompts, evenly spread, since files are sorted by category."""
    records = read_prompts("--prompts", path)
    return [records[i * len(records) // count] for i in range(min(count, len(records)))]


def first_turns(path: Path, count: int | None = None) -> list[str]:
    """Returns the first user messages of the file's first `count` prompts."""
    return [record.text for record in read_prompts("--prompts", path)[:count]]
