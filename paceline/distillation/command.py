"""Runs `paceline distill` and writes the model card."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from paceline.distillation.batches import product_dtype
from paceline.distillation.draft import chosen_layers
from paceline.distillation.head_distillation import HeadDistillation
from paceline.distillation.loss import Agreement
from paceline.distillation.run import Distillation, DistillConfig, Trained
from paceline.engine.models.weights import load_model
from paceline.engine.threads import CORES, set_num_workers
from paceline.errors import ConfigError
from paceline.prompts import PromptRecord

TITLES = ("text", "alpha, at least", "same likeliest token", "tokens")


def by_depth(text: str, found: Sequence[Agreement]) -> dict[str, Agreement]:
    """Names agreement by depth: `text` for the next token, "`text`: token 2" for the one after it."""
    return {text if depth == 0 else f"{text}: token {depth + 1}": each for depth, each in enumerate(found)}


def table(found: Mapping[str, Agreement]) -> list[tuple[str, ...]]:
    return [
        (name, f"{each.mean_alpha:.3f}", f"{each.mean_top_1:.3f}", f"{each.num_rows:,}") for name, each in found.items()
    ]


def write_model_card(folder: Path, work: Distillation, trained: Trained, found: Mapping[str, Agreement]) -> None:
    config, plan = work.config, work.config.plan
    is_head = config.depth > 0
    layers = ", ".join(map(str, chosen_layers(config.num_layers, work.beginning.config.num_layers)))
    what = f"--head --depth {config.depth}" if is_head else f"--layers {config.num_layers}"
    command = (
        f"paceline distill --target {config.target} {what} --init-from {config.init_from} --head-size {config.head_size} "
        f"--corpus-tokens {work.corpus.num_written} --tokens {trained.trainer.seen} --divergence {plan.divergence}{'-overlap' if plan.overlap_from < 1 else ''} "
        f"--learning-rate {plan.learning_rate} --batch-tokens {plan.batch_tokens} --seed {plan.seed}"
        + (f" --masks {config.num_masks}" if config.num_masks else "")
    )
    facts = {
        "target": config.target,
        "layers": f"one, of EAGLE-3, initialized from the last of {config.init_from}, and a norm for each hidden state"
        if is_head
        else f"{config.num_layers}, initialized from {layers} of {config.init_from}; stored as int8",
        "head": f"the target's, for its {config.head_size:,} most frequent tokens" if config.head_size else "whole",
        "tokens in a chain" if is_head else "tokens in one forward pass": f"{config.depth or config.num_masks + 1}",
        "text": f"{work.corpus.num_written:,} tokens, written by the target in conversations with itself",
        "training": f"{trained.trainer.seen:,} tokens, including repeats, in {trained.trainer.spent_s / 60:.0f} minutes",
        "command": f"`{command}`",
        "license": "that of the target, from whose weights it was made",
    }
    lines = [
        f"# A draft {'head' if is_head else 'model'} for {config.target}", "",
        "Made by `paceline distill`. Embedding, head and tokenizer are the target's and not included.", "",
        *_markdown([("", ""), *facts.items()]), "",
        *_markdown([TITLES, *table(found)]), "",
        "Alpha is the probability that a draft token is accepted at temperature 1: sum min(p, q).",
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def _markdown(rows: list[tuple[str, ...]]) -> list[str]:
    first, *others = [f"| {' | '.join(row)} |" for row in rows]
    return [first, "|" + " --- |" * len(rows[0]), *others]


def run(
    folder: Path,
    config: DistillConfig,
    prompts: list[PromptRecord],
    eval_prompts: list[PromptRecord],
    threads: int | None,
) -> None:
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is 'cuda'; torch finds no such device here")
    num_threads = threads or len(CORES)
    torch.set_num_threads(num_threads)
    set_num_workers(num_threads)
    console = Console(stderr=True)
    if config.depth:
        kind: type[Distillation] = HeadDistillation
        # As it is served: a head reads the states of quantized layers.
        target = beginning = load_model(config.target, torch.bfloat16, console.print, in_place=True)
    else:
        kind, target = Distillation, load_model(config.target, product_dtype("cpu"), console.print)
        is_new = config.init_from == config.target
        beginning = target if is_new else load_model(config.init_from, torch.float32, console.print)
    tokens = TextColumn("{task.fields[tokens]:,} tokens")
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), tokens, TimeRemainingColumn())
    with Progress(*columns, console=console) as bars:
        shown = {name: bars.add_task(name, total=1, tokens=0) for name in ("writing", "training")}

        def progress(name: str, share: float, tokens: int) -> None:
            bars.update(shown[name], completed=share, tokens=tokens)

        work = kind(folder, config, target, beginning, progress)
        work.write([each.text for each in prompts])
        trained = work.train()
    rows = by_depth("its own conversations, held out", trained.held_out)
    if eval_prompts:
        texts, categories = [each.text for each in eval_prompts], [each.category for each in eval_prompts]
        for category, found in work.evaluate(trained, texts, categories).items():
            rows |= by_depth(category, found)
    write_model_card(folder / "draft", work, trained, rows)
    shown_table = Table(*TITLES, title=str(folder / "draft"))
    for row in table(rows):
        shown_table.add_row(*row)
    Console().print(shown_table)
