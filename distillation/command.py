"""What `paceline distill` does: a distillation with its progress and its table."""

import json
import os
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from distillation.run import Distillation, Wish
from paceline.engine.kernels.scalars import set_num_workers
from paceline.engine.weights import load_model
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt to evaluate on."""

    text: str
    category: str


def read_questions(path: Path) -> list[Question]:
    """Prompts from JSON lines. Raises ConfigError naming the line that has none."""
    if not path.is_file():
        raise ConfigError(f"held_out {path}: no such file")
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(Question(row.get("prompt") or row["turns"][0], str(row.get("category", "prompts"))))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(f"held_out {path}, line {number}: no prompt or turns in it") from error
    return found


def run(folder: Path, wish: Wish, held_out: Path | None, threads: int | None) -> None:
    """Writes, trains, evaluates; shows how it goes on stderr and what came of it on stdout."""
    questions = read_questions(held_out) if held_out is not None else []
    num_threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(num_threads)
    set_num_workers(num_threads)
    console = Console(stderr=True)
    target = load_model(wish.target, torch.bfloat16, console.print)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        shown = {name: bars.add_task(name, total=None) for name in ("writing", "training")}

        def progress(name: str, done: float, total: float) -> None:
            bars.update(shown[name], completed=done, total=total)

        work = Distillation(folder, wish, target, progress)
        work.write()
        trained = work.train()
    rows = {"its own conversations, held out": trained.held_out}
    if questions:
        texts, categories = [each.text for each in questions], [each.category for each in questions]
        rows |= work.evaluate(trained, texts, categories)
    table = Table("", "alpha, at least", "same likeliest token", "answer tokens", title=str(folder / "draft"))
    for name, found in rows.items():
        table.add_row(name, f"{found.mean_alpha:.3f}", f"{found.mean_top_1:.3f}", f"{found.num_rows:,}")
    Console().print(table)
