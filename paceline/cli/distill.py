"""`paceline distill`: trains a small draft for a target, from the target alone."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from paceline.cli.generate import read_prompts
from paceline.errors import InvalidArgument
from paceline.sampling import require

MIN_TOKENS = 1000


def distill(
    target: Annotated[
        str, typer.Option(help="the model to make a draft for: as `--model` of a server")
    ] = "smollm2-135m",
    layers: Annotated[int, typer.Option(help="layers of the draft, begun as the target's first and last")] = 4,
    tokens: Annotated[
        int, typer.Option(help=f"answer tokens to train on, repeats counted; at least {MIN_TOKENS}")
    ] = 5_000_000,
    corpus_tokens: Annotated[
        int | None, typer.Option(help="answer tokens to have the target write; default: half of --tokens")
    ] = None,
    out: Annotated[Path, typer.Option(help="folder for the draft and the work; a broken-off run goes on there")] = Path(
        "draft"
    ),
    head_size: Annotated[int, typer.Option(help="token ids the draft can propose, the most frequent; 0: all")] = 16_384,
    learning_rate: Annotated[float, typer.Option(help="at its peak, in (0, 1)")] = 1e-3,
    batch_tokens: Annotated[int, typer.Option(help="tokens in a training step, padding counted")] = 4096,
    divergence: Annotated[str, typer.Option(help="what is minimised: kl or overlap")] = "kl",
    at_once: Annotated[int, typer.Option(min=1, help="conversations the target writes at once")] = 128,
    held_out: Annotated[
        Path | None, typer.Option(help="JSON lines with `prompt` or `turns`, and `category`: what to evaluate on")
    ] = None,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores")] = None,
) -> None:
    """Makes a draft for TARGET: has it write conversations, and trains a few of its own layers on them."""
    # torch takes seconds to import, and only this command needs it.
    import torch

    from distillation.loss import Divergence
    from distillation.run import Distillation, Wish
    from distillation.trainer import Plan
    from paceline.engine.kernels.scalars import set_num_workers
    from paceline.engine.weights import load_model

    if divergence not in tuple(Divergence):
        raise InvalidArgument.field("divergence", divergence, "kl or overlap")
    if tokens < MIN_TOKENS:
        raise InvalidArgument.field("tokens", tokens, f"at least {MIN_TOKENS}")
    if not 0 < learning_rate < 1:
        raise InvalidArgument.field("learning_rate", learning_rate, "in (0, 1)")
    asked = read_questions(held_out) if held_out is not None else None
    num_threads = threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(num_threads)
    set_num_workers(num_threads)
    console = Console(stderr=True)
    plan = Plan(tokens, batch_tokens, learning_rate, Divergence(divergence), seed)
    wish = Wish(target, layers, corpus_tokens or tokens // 2, plan, head_size, at_once)
    loaded = load_model(target, torch.bfloat16, console.print)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        shown = {name: bars.add_task(name, total=None) for name in ("writing", "training")}
        work = Distillation(
            out, wish, loaded, lambda name, done, total: bars.update(shown[name], completed=done, total=total)
        )
        work.write()
        trained = work.train()
    console.print(f"[bold]{out / 'draft'}[/bold]: what `--draft-model` takes")
    rows = {"its own held-out conversations": trained.held_out}
    if asked is not None:
        rows |= work.evaluate(trained, [question for question, _ in asked], [category for _, category in asked])
    table = Table("", "alpha, at least", "same likeliest token", "answer tokens")
    for name, found in rows.items():
        table.add_row(name, f"{found.mean_alpha:.3f}", f"{found.mean_top_1:.3f}", f"{found.num_rows:,}")
    Console().print(table)


def read_questions(path: Path) -> list[tuple[str, str]]:
    """Prompts with their categories, "" where there is none."""
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    prompts = [text for text in read_prompts(path) if isinstance(text, str)]
    require(len(prompts) == len(rows), "held_out", str(path), "prompts or turns, no messages")
    return [(prompt, str(row.get("category", "prompts"))) for prompt, row in zip(prompts, rows, strict=True)]
