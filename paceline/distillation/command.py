"""The command `paceline distill`: runs a distillation, and shows its progress and its results."""

from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from paceline.distillation.card import TITLES, by_depth, table, write_card
from paceline.distillation.run import Distillation, DistillConfig
from paceline.engine.models.weights import load_model
from paceline.engine.threads import CORES, set_num_workers
from paceline.errors import ConfigError
from paceline.prompts import PromptRecord


def run(
    folder: Path, config: DistillConfig, prompts: list[PromptRecord], held_out: list[PromptRecord], threads: int | None
) -> None:
    """Writes, trains, evaluates; shows how it goes on stderr and what came of it on stdout."""
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
        work.write([each.text for each in prompts])
        trained = work.train()
    rows = by_depth("its own conversations, held out", trained.held_out)
    if held_out:
        texts, categories = [each.text for each in held_out], [each.category for each in held_out]
        for category, found in work.evaluate(trained, texts, categories).items():
            rows |= by_depth(category, found)
    write_card(folder / "draft", work, trained, rows)
    shown_table = Table(*TITLES, title=str(folder / "draft"))
    for row in table(rows):
        shown_table.add_row(*row)
    Console().print(shown_table)
