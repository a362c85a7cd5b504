import math
from pathlib import Path
from typing import Annotated

import typer

from paceline.checks import require
from paceline.cli import options
from paceline.prompts import read_prompts
from paceline.speculation_params import MAX_DRAFT_TOKENS

MIN_TOKENS = 1000
DEFAULT_TOKENS = 5_000_000
# Share of --hours for writing the corpus; the rest is training.
WRITING_SHARE = 1 / 3
MIN_BATCH_TOKENS = 512
DIVERGENCES = ("kl", "overlap", "kl-overlap")
# Share of the training after which kl-overlap minimizes the overlap.
OVERLAP_FROM = 0.75
DEVICES = ("cpu", "cuda")


def distill(
    target: Annotated[
        str, typer.Option(help="target model to train a draft model for, as for a server's --model")
    ] = "smollm2-135m",
    layers: Annotated[int, typer.Option(help="number of layers of the draft model")] = 4,
    head: Annotated[
        bool,
        typer.Option(
            "--head", help="train a draft head (EAGLE-3), for a target server's --draft-head, in place of a draft model"
        ),
    ] = False,
    depth: Annotated[
        int, typer.Option(min=1, max=MAX_DRAFT_TOKENS, help="with --head: tokens of the chains to train on")
    ] = 3,
    init_from: Annotated[
        str | None,
        typer.Option(
            help="model whose first and last layers to start from, such as a draft model, or a head to train further; default: TARGET"
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help=f"tokens to train on, including repeats; at least {MIN_TOKENS}; default: {DEFAULT_TOKENS:,}"),
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="time to spend instead of --tokens, a third of it on the corpus; above 0")
    ] = None,
    corpus_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="size of the corpus that the target writes, in tokens; default: a third of --tokens"),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help=f"a file of prompts to use for half of the user messages: {options.PROMPT_FORMS}"),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="folder for the draft model and intermediate files; resumes an interrupted run")
    ] = Path("draft"),
    head_size: Annotated[
        int, typer.Option(min=0, help="number of token ids that can be proposed, the most frequent ones; 0: all")
    ] = 16_384,
    learning_rate: Annotated[float, typer.Option(help="peak learning rate, in (0, 1)")] = 1e-3,
    batch_tokens: Annotated[
        int, typer.Option(help=f"tokens per training step, including padding; at least {MIN_BATCH_TOKENS}")
    ] = 1024,
    divergence: Annotated[
        str, typer.Option(help="loss: kl, overlap, or kl-overlap (kl, then overlap in the last quarter)")
    ] = "kl-overlap",
    masks: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_DRAFT_TOKENS - 1,
            help="further tokens to propose in the same forward pass; 0: propose step by step",
        ),
    ] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="conversations that the target writes concurrently")] = 128,
    eval_prompts: Annotated[
        Path | None,
        typer.Option(help="a file of prompts to evaluate on, formatted as --prompts; reported by `category`"),
    ] = None,
    device: Annotated[
        str, typer.Option(help="training device: cpu or cuda; the target always writes on the CPU")
    ] = "cpu",
    seed: Annotated[int, typer.Option(help="random seed")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores")] = None,
) -> None:
    """Trains a draft model for TARGET, a few of its own layers, or a draft head, on conversations that it writes."""
    require(not (head and masks), "masks", masks, "0 with --head")
    require(divergence in DIVERGENCES, "divergence", divergence, " or ".join(DIVERGENCES))
    require(device in DEVICES, "device", device, " or ".join(DEVICES))
    require(tokens is None or tokens >= MIN_TOKENS, "tokens", tokens, f"at least {MIN_TOKENS}")
    require(tokens is None or hours is None, "hours", hours, "absent if --tokens is given")
    require(hours is None or hours > 0, "hours", hours, "above 0")
    require(batch_tokens >= MIN_BATCH_TOKENS, "batch_tokens", batch_tokens, f"at least {MIN_BATCH_TOKENS}")
    require(0 < learning_rate < 1, "learning_rate", learning_rate, "in (0, 1)")
    asked = [] if prompts is None else read_prompts("--prompts", prompts)
    questions = [] if eval_prompts is None else read_prompts("--eval-prompts", eval_prompts)
    # Imports torch, which takes seconds.
    from paceline.distillation.command import run
    from paceline.distillation.loss import Divergence
    from paceline.distillation.run import DistillConfig
    from paceline.distillation.trainer import Budget, TrainingPlan

    if hours is not None:
        writing = Budget(seconds=hours * 3600 * WRITING_SHARE)
        training = Budget(seconds=hours * 3600 * (1 - WRITING_SHARE))
    else:
        tokens = tokens or DEFAULT_TOKENS
        writing, training = Budget(tokens // 3), Budget(tokens)
    if corpus_tokens is not None:
        writing = Budget(corpus_tokens)
    first, _, last = divergence.partition("-")
    plan = TrainingPlan(
        training, batch_tokens, learning_rate, Divergence(first), OVERLAP_FROM if last else math.inf, seed
    )
    run(
        out,
        DistillConfig(
            target,
            1 if head else layers,
            init_from or target,
            writing,
            plan,
            device,
            head_size,
            concurrency,
            num_masks=masks,
            depth=depth if head else 0,
        ),
        asked,
        questions,
        threads,
    )
