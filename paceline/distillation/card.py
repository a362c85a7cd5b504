"""A draft's model card: the README.md beside its weights."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from paceline.distillation.draft import chosen_layers
from paceline.distillation.run import Distillation, Trained
from paceline.distillation.training.loss import Agreement

TITLES = ("text", "alpha, at least", "same likeliest token", "tokens")


def by_depth(text: str, found: Sequence[Agreement]) -> dict[str, Agreement]:
    """The next token by the text's name; of a draft that proposes several at once the others, each without a look at the
    one before it."""
    return {text if depth == 0 else f"{text}: token {depth + 1}": each for depth, each in enumerate(found)}


def table(found: Mapping[str, Agreement]) -> list[tuple[str, ...]]:
    """Rows with the columns of TITLES."""
    return [
        (name, f"{each.mean_alpha:.3f}", f"{each.mean_top_1:.3f}", f"{each.num_rows:,}") for name, each in found.items()
    ]


def write_card(folder: Path, work: Distillation, trained: Trained, found: Mapping[str, Agreement]) -> None:
    """Writes the card. `found`: the draft's agreement with the target, for each kind of text."""
    config, plan = work.config, work.config.plan
    layers = ", ".join(map(str, chosen_layers(config.num_layers, work.beginning.config.num_layers)))
    command = (
        f"paceline distill --target {config.target} --layers {config.num_layers} --begin-with {config.begin_with} --head-size {config.head_size} "
        f"--corpus-tokens {work.corpus.num_written} --tokens {trained.trainer.seen} --divergence {plan.divergence}{'-overlap' if plan.overlap_from < 1 else ''} "
        f"--learning-rate {plan.learning_rate} --batch-tokens {plan.batch_tokens} --seed {plan.seed}"
        + (f" --masks {config.num_masks}" if config.num_masks else "")
    )
    facts = {
        "target": config.target,
        "layers": f"{config.num_layers}, begun as {layers} of {config.begin_with}; stored as int8",
        "head": f"the target's, for the {config.head_size:,} tokens that came most often"
        if config.head_size
        else "whole",
        "tokens in one forward": f"{config.num_masks + 1}",
        "text": f"{work.corpus.num_written:,} tokens, all written by the target in conversations with itself",
        "training": f"{trained.trainer.seen:,} tokens, repeats counted, in {trained.trainer.spent_s / 60:.0f} minutes",
        "like it": f"`{command}`",
        "licence": "that of the target, whose weights it was made from",
    }
    lines = [
        f"# A draft for {config.target}", "",
        "Made by `paceline distill`. Embedding, head and tokenizer are the target's own, and not in here.", "",
        *_markdown([("", ""), *facts.items()]), "",
        *_markdown([TITLES, *table(found)]), "",
        "Alpha is the chance that a drafted token is accepted at temperature 1: sum min(p, q).",
    ]  # fmt: skip
    (folder / "README.md").write_text("\n".join(lines) + "\n")


def _markdown(rows: list[tuple[str, ...]]) -> list[str]:
    first, *others = [f"| {' | '.join(row)} |" for row in rows]
    return [first, "|" + " --- |" * len(rows[0]), *others]
