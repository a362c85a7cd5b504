"""`paceline distill`: trains a small draft for a target, from the target alone."""

from pathlib import Path
from typing import Annotated

import typer

from paceline.sampling import require

MIN_TOKENS = 1000
MIN_BATCH_TOKENS = 512
DIVERGENCES = ("kl", "overlap")


def distill(
    target: Annotated[str, typer.Option(help="the model to make a draft for, as a server's --model")] = "smollm2-135m",
    layers: Annotated[int, typer.Option(help="layers of the draft, begun as the target's first and last")] = 4,
    tokens: Annotated[
        int, typer.Option(help=f"answer tokens to train on, repeats counted; at least {MIN_TOKENS}")
    ] = 5_000_000,
    corpus_tokens: Annotated[
        int | None, typer.Option(min=1, help="answer tokens to have the target write; default: half of --tokens")
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
    ] = 4096,
    divergence: Annotated[str, typer.Option(help="what is minimised: kl or overlap")] = "kl",
    at_once: Annotated[int, typer.Option(min=1, help="conversations the target writes at once")] = 128,
    held_out: Annotated[
        Path | None, typer.Option(help="JSON lines with `prompt` or `turns`, and `category`: what to evaluate on")
    ] = None,
    seed: Annotated[int, typer.Option(help="of everything random")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads; default: all cores")] = None,
) -> None:
    """Makes a draft for TARGET: has it write conversations, and trains a few of its own layers on them."""
    require(divergence in DIVERGENCES, "divergence", divergence, " or ".join(DIVERGENCES))
    require(tokens >= MIN_TOKENS, "tokens", tokens, f"at least {MIN_TOKENS}")
    require(batch_tokens >= MIN_BATCH_TOKENS, "batch_tokens", batch_tokens, f"at least {MIN_BATCH_TOKENS}")
    require(0 < learning_rate < 1, "learning_rate", learning_rate, "in (0, 1)")
    # torch takes seconds to import, and only this command needs it.
    from distillation.command import run
    from distillation.loss import Divergence
    from distillation.run import Wish
    from distillation.trainer import Plan

    plan = Plan(tokens, batch_tokens, learning_rate, Divergence(divergence), seed)
    run(out, Wish(target, layers, corpus_tokens or tokens // 2, plan, head_size, at_once), held_out, threads)
