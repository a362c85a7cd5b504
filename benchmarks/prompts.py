"""Prompts from a file, as benchmarks take them."""

from pathlib import Path

from paceline.prompts import PromptRecord, read_prompts


def spread_prompts(path: Path, count: int) -> list[PromptRecord]:
    """`count` of the file's prompts, evenly spread: files go by category."""
    records = read_prompts("--prompts", path)
    return [records[i * len(records) // count] for i in range(min(count, len(records)))]


def first_turns(path: Path, count: int | None = None) -> list[str]:
    """What the users of the file's first `count` prompts say first."""
    return [record.text for record in read_prompts("--prompts", path)[:count]]
