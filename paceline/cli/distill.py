"""`paceline distill`: trains a small draft for a target, from the target alone."""

import math
from pathlib import Path
from typing import Annotated

import typer

from paceline.checks import require
from paceline.cli import options
from paceline.prompts import read_prompts
from paceline.speculation import MAX_DRAFT_TOKENS

MIN_TOKENS = 1000
DEFAULT_TOKENS = 5_000_000
# Of --hours; the rest is training.
WRITING_SHARE = 1 / 3
MIN_BATCH_TOKENS = 512
DIVERGENCES = ("kl", "overlap", "kl-overlap")
# Of the training, where it goes over to the overlap.
OVERLAP_FROM = 0.75
DEVICES = ("cpu", "cuda")


def distill(
    target: Annotated[str, typer.Option(help="the model to make a draft for, as a server's --model")] = "smollm2-135m",
    layers: Annotated[int, typer.Option(help="layers of the draft")] = 4,
    begin_with: Annotated[
        str | None,
        typer.Option(help="model whose first and last layers it begins as, such as a draft; default: TARGET"),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help=f"tokens to train on, repeats counted; at least {MIN_TOKENS}; default: {DEFAULT_TOKENS:,}"),
    ] = None,
    hours: Annotated[
        float | None, typer.Option(help="time to take instead, a third of it for the target's writing; above 0")
    ] = None,
    corpus_tokens: Annotated[
        int | None, typer.Option(min=1, help="tokens to have the target write; default: a third of --tokens")
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(help=f"a file of prompts that make half of the users' turns: {options.PROMPT_FORMS}"),
    ] = None,
    out: Annotated[
        Path, typer.Option(help="folder for the draft and the work; what was broken off there goes on")
    ] = Path("draft"),
    head_size: Annotated[
        int, typer.Option(min=0, help="token ids the draft can propose, the most frequent; 0: all")
    ] = 16_384,
    learning_rate: Annotated[float, typer.Option(help="at its peak, in (0, 1)")] = 1e-3,
    batch_tokens: Annotated[
        int, typer.Option(help=f"tokens in a training step, padding counted; at least {MIN_BATCH_TOKENS}")
    ] = 1024,
    divergence: Annotated[
        str, typer.Option(help="what is minimised: kl, overlap, or kl-overlap: kl, and overlap in the last quarter")
    ] = "kl-overlap",
    masks: Annotated[
        int,
        typer.Option(
            min=0,
            max=MAX_DRAFT_TOKENS - 1,
            help="tokens that it proposes behind the next one in the same forward; 0: it proposes step by step",
        ),
    ] = 0,
    at_once: Annotated[int, typer.Option(min=1, help="conversations the target writes at once")] = 128,
    held_out: Annotated[
        Path | None,
        typer.Option(help="a file of prompts to evaluate on, in the same forms; `category` gives each its row"),
    ] = None,
    device: Annotated[str, typer.Option(help="where training runs: cpu or cuda; the target writes on the CPU")] = "cpu",
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores")] = None,
) -> None:
    """Makes a draft for TARGET: has it write conversations, and trains a few of its own layers on them."""
    require(divergence in DIVERGENCES, "divergence", divergence, " or ".join(DIVERGENCES))
    require(device in DEVICES, "device", device, " or ".join(DEVICES))
    require(tokens is None or tokens >= MIN_TOKENS, "tokens", tokens, f"at least {MIN_TOKENS}")
    require(tokens is None or hours is None, "hours", hours, "absent where tokens are given")
    require(hours is None or hours > 0, "hours", hours, "above 0")
    require(batch_tokens >= MIN_BATCH_TOKENS, "batch_tokens", batch_tokens, f"at least {MIN_BATCH_TOKENS}")
    require(0 < learning_rate < 1, "learning_rate", learning_rate, "in (0, 1)")
    asked = [] if prompts is None else read_prompts("--prompts", prompts)
    questions = [] if held_out is None else read_prompts("--held-out", held_out)
    # torch takes seconds to import, and only this command needs it.
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
        DistillConfig(target, layers, begin_with or target, writing, plan, device, head_size, at_once, num_masks=masks),
        asked,
        questions,
        threads,
    )
