"""What `paceline distill` does: a distillation with its progress and its table."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from paceline.distillation.card import TITLES, table, write_card
from paceline.distillation.run import Distillation, DistillConfig
from paceline.engine.models.weights import load_model
from paceline.engine.threads import CORES, set_num_workers
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Prompt:
    """A user's turn."""

    text: str
    category: str


def read_prompts(name: str, path: Path | None) -> list[Prompt]:
    """Prompts from JSON lines, none without a file. Raises ConfigError naming the option and the line at fault."""
    if path is None:
        return []
    if not path.is_file():
        raise ConfigError(f"{name} {path}: no such file")
    found = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            row = json.loads(line)
            found.append(Prompt(row.get("prompt") or row["turns"][0], str(row.get("category", "prompts"))))
        except (ValueError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise ConfigError(f"{name} {path}, line {number}: no prompt or turns in it") from error
    return found


def run(folder: Path, config: DistillConfig, prompts: Path | None, held_out: Path | None, threads: int | None) -> None:
    """Writes, trains, evaluates; shows how it goes on stderr and what came of it on stdout."""
    asked, questions = read_prompts("prompts", prompts), read_prompts("held_out", held_out)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda'; torch finds no such device here")
    num_threads = threads or len(CORES)
    torch.set_num_threads(num_threads)
    set_num_workers(num_threads)
    console = Console(stderr=True)
    target = load_model(config.target, torch.bfloat16, console.print)
    is_new = config.begin_with == config.target
    beginning = target if is_new else load_model(config.begin_with, torch.float32, console.print)
    tokens = TextColumn("{task.fields[tokens]:,} tokens")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), tokens, TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        shown = {name: bars.add_task(name, total=1, tokens=0) for name in ("writing", "training")}

        def progress(name: str, share: float, tokens: int) -> None:
            bars.update(shown[name], completed=share, tokens=tokens)

        work = Distillation(folder, config, target, beginning, progress)
        work.write([each.text for each in asked])
        trained = work.train()
    rows = {"its own conversations, held out": trained.held_out}
    if questions:
        texts, categories = [each.text for each in questions], [each.category for each in questions]
        rows |= work.evaluate(trained, texts, categories)
    write_card(folder / "draft", work, trained, rows)
    shown_table = Table(*TITLES, title=str(folder / "draft"))
    for row in table(rows):
        shown_table.add_row(*row)
    Console().print(shown_table)
