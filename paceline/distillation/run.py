"""Distils a target into a draft model, in a folder from which an interrupted run resumes.

FOLDER/corpus/          conversations that the target wrote
FOLDER/head_ids.npy     tokens that the draft model can propose
FOLDER/checkpoint.pt    state of the training
FOLDER/curve.csv        alpha and agreement on held-out text, by tokens seen; also as FOLDER/curve.png
FOLDER/draft/           the draft model, for `--model`
"""

import csv
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from paceline.distillation.batches import MaskedTokens, Masks, NextToken, Objective, product_dtype
from paceline.distillation.conversations import ChatFrame, Corpus, Question, Record, Style, read_shard, read_tokenizer
from paceline.distillation.draft import (
    chosen_layers,
    frequent_ids,
    lender_of,
    make_backbone,
    require_trainable,
    save_draft,
)
from paceline.distillation.loss import Agreement, FrozenHead, HeadIndex
from paceline.distillation.questions import Questions, read_openings
from paceline.distillation.trainer import Budget, Trainer, TrainingPlan
from paceline.distillation.writer import Writer
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.models.weights import LoadedModel
from paceline.errors import ConfigError


class Curve:
    """The learning curve, curve.csv and curve.png. Keeps existing rows."""

    def __init__(self, folder: Path) -> None:
        self._csv, self._png = folder / "curve.csv", folder / "curve.png"
        self.rows: list[dict[str, float]] = []
        if self._csv.exists():
            with open(self._csv, newline="") as file:
                rows = list(csv.DictReader(file))
            self.rows = [
                {name: int(value) if name == "tokens" else float(value) for name, value in row.items()} for row in rows
            ]

    def add(self, tokens: int, loss: float, found: Sequence[Agreement]) -> None:
        """`loss`: mean since the last row; `found`: agreement by depth."""
        row = {"tokens": tokens, "loss": round(loss, 4)}
        for depth, each in enumerate(found):
            suffix = f"_{depth + 1}" if depth else ""
            row |= {f"alpha{suffix}": round(each.mean_alpha, 4), f"top_1{suffix}": round(each.mean_top_1, 4)}
        self.rows.append(row)
        with open(self._csv, "w", newline="") as file:
            writer = csv.DictWriter(file, row.keys())
            writer.writeheader()
            writer.writerows(self.rows)
        self._draw()

    def _draw(self) -> None:
        # Takes a second to import.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        figure = Figure(figsize=(10, 4), layout="constrained")
        FigureCanvasAgg(figure)
        left, right = figure.subplots(1, 2)
        tokens = [row["tokens"] / 1e6 for row in self.rows]
        left.plot(tokens[1:], [row["loss"] for row in self.rows][1:])
        left.set(xlabel="million tokens seen", ylabel="training loss")
        right.plot(tokens, [row["alpha"] for row in self.rows], label="alpha, at least")
        for name in self.rows[-1]:
            if name.startswith("top_1"):
                label = "same likeliest token" + name.removeprefix("top_1").replace("_", ", of token ")
                right.plot(tokens, [row[name] for row in self.rows], label=label)
        right.set(xlabel="million tokens seen", ylabel="on held-out text", ylim=(0, 1))
        right.legend()
        figure.savefig(self._png, format="png", dpi=120)


GREEDY = Style(temperature=0.0, top_p=1.0, max_tokens=80)


def answer_greedily(
    model: CpuLlama, frame: ChatFrame, questions: Sequence[list[int]], concurrency: int, top: int,
    taps: Sequence[int] = (),
) -> list[Record]:  # fmt: skip
    longest = max(map(len, questions), default=0)
    asked = (Question(question, is_whole=True) for question in questions)
    writer = Writer(model, frame, concurrency, top, 0, asked, longest, (GREEDY,), taps)
    return [record for _, record in sorted(writer.records(), key=lambda pair: pair[0])]


def by_category(trainer: Trainer, records: Sequence[Record], categories: Sequence[str]) -> dict[str, list[Agreement]]:
    groups: dict[str, list[Record]] = defaultdict(list)
    for record, category in zip(records, categories, strict=True):
        groups[category].append(record)
    return {category: trainer.agreement(group) for category, group in groups.items()}


# Held-out conversations, from the oldest ones, so that a resumed run holds out the same.
HELD_OUT = 128
# Not the oldest ones in a row, since the first to end are short.
HELD_OUT_EVERY = 4
# Maximum share of all conversations.
HELD_OUT_SHARE = 0.1
MIN_CONVERSATIONS = 10
SHARD_CONVERSATIONS = 512
CHECKPOINT_S = 180.0
# Share of the target's tokens that are anchors of mask tokens.
ANCHOR_SHARE = 0.3
# Time between evaluations / time of an evaluation.
EVALUATION_PAUSE = 40.0
# Called with the name of the current phase, its finished share in [0, 1], and its tokens.
Progress = Callable[[str, float, int], None]


@dataclass(frozen=True, slots=True)
class DistillConfig:
    target: str
    num_layers: int
    # Model to copy the layers from: the target, or a draft model to train further.
    init_from: str
    writing: Budget
    plan: TrainingPlan
    device: str = "cpu"
    # Tokens of the head; 0 for all.
    head_size: int = 16_384
    concurrency: int = 128
    # Likeliest tokens to record for each distribution.
    top: int = 32
    # Mask tokens to learn; 0: propose step by step.
    num_masks: int = 0
    # Tokens of a draft head's chains; 0: a draft model, not a head.
    depth: int = 0


@dataclass(slots=True)
class Pause:
    since_s: float = field(default_factory=time.monotonic)
    took_s: float = 1.0

    def is_over(self, seconds: float) -> bool:
        return time.monotonic() - self.since_s > seconds

    def measure(self, do: Callable[[], Any]) -> None:
        started_s = time.monotonic()
        do()
        self.since_s = time.monotonic()
        self.took_s = self.since_s - started_s


@dataclass(frozen=True, slots=True)
class Trained:
    trainer: Trainer
    # By depth.
    held_out: list[Agreement]


def hold_out(records: list[Record]) -> list[Record]:
    """Removes every HELD_OUT_EVERY-th record, up to HELD_OUT of them, for evaluation."""
    end = min(HELD_OUT, int(HELD_OUT_SHARE * len(records))) * HELD_OUT_EVERY
    held_out = [record.answer for record in records[:end:HELD_OUT_EVERY]]
    del records[:end:HELD_OUT_EVERY]
    return held_out


@dataclass(slots=True)
class Distillation:
    folder: Path
    config: DistillConfig
    target: LoadedModel
    # Model to copy the layers from.
    beginning: LoadedModel
    progress: Progress
    corpus: Corpus = field(init=False)
    _lender: LoadedModel = field(init=False)
    _tokenizer: PreTrainedTokenizerFast = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError if `beginning` does not fit the target, has too few layers or can't be trained."""
        self._lender = lender_of(self.target, self.beginning)
        chosen_layers(self.config.num_layers, self.beginning.config.num_layers)
        require_trainable(self.beginning, self.config.num_masks)
        self.corpus = Corpus(self.folder / "corpus")
        self._tokenizer = read_tokenizer(self.target.tokenizer_files)

    def write(self, prompts: Sequence[str] = ()) -> None:
        """Lets the target write until the budget is used. Every second user message is one of `prompts`."""
        config = self.config
        written, spent_s = self.corpus.num_written, self.corpus.seconds
        if config.writing.share(written, spent_s) >= 1:
            return
        # A resumed run must not write the same text again.
        seed = config.plan.seed + 1000 * len(self.corpus.shards)
        openings, ends = read_openings(self._encode), self.target.config.eos_token_ids
        questions = Questions(self._tokens_of(prompts), openings, ends, seed)
        writer = Writer(
            self._model(), self._frame(), config.concurrency, config.top, seed, questions, questions.longest,
            taps=self._taps,
        )  # fmt: skip
        records: list[Record] = []
        since_s = time.monotonic()
        for _, record in writer.records():
            records.append(record)
            questions.keep(record)
            written += record.num_written
            took_s = time.monotonic() - since_s
            share = config.writing.share(written, spent_s + took_s)
            self.progress("writing", share, written)
            if len(records) == SHARD_CONVERSATIONS or share >= 1:
                self.corpus.add(records, took_s)
                records, since_s, spent_s = [], since_s + took_s, spent_s + took_s
            if share >= 1:
                return

    def train(self) -> Trained:
        """Trains from a checkpoint if there is one. Raises ConfigError if the corpus is too small."""
        records = [record for shard in self.corpus.shards for record in read_shard(shard)]
        if len(records) < MIN_CONVERSATIONS:
            raise ConfigError(f"{len(records)} conversations are too few to train on; give a larger --corpus-tokens")
        held_out = hold_out(records)
        head_ids = self._head_ids(records)
        trainer = self._trainer(head_ids)
        checkpoint, curve = self.folder / "checkpoint.pt", Curve(self.folder)
        if checkpoint.exists():
            trainer.load(checkpoint)
        losses: list[float] = []

        def evaluate() -> list[Agreement]:
            found = trainer.agreement(held_out)
            curve.add(trainer.seen, sum(losses) / max(1, len(losses)), found)
            losses.clear()
            return found

        saved, evaluated = Pause(), Pause()
        if not curve.rows:
            evaluated.measure(evaluate)
        for loss in trainer.run(records):
            losses.append(loss)
            self.progress("training", trainer.share, trainer.seen)
            if evaluated.is_over(EVALUATION_PAUSE * evaluated.took_s):
                evaluated.measure(evaluate)
            if saved.is_over(CHECKPOINT_S):
                saved.measure(lambda: trainer.save(checkpoint))
        trainer.save(checkpoint)
        self._save(trainer, head_ids)
        return Trained(trainer, evaluate())

    def _save(self, trainer: Trainer, head_ids: NDArray[np.int64]) -> None:
        assert isinstance(trainer.backbone, PreTrainedModel)
        save_draft(self.folder / "draft", trainer.backbone, self._lender.name, torch.from_numpy(head_ids))

    def _trainer(self, head_ids: NDArray[np.int64]) -> Trainer:
        config, tensors = self.config, self._lender.tensors
        backbone = make_backbone(
            self.beginning.config.source, self.beginning.tensors, config.num_layers, config.num_masks
        ).to(config.device)
        name = "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight"
        # The draft's norm will have the factor of its logits.
        head = tensors[name][torch.from_numpy(head_ids)] * self.beginning.config.scales.logit
        objective = self._objective(HeadIndex(head_ids, self.target.config.vocab_size))
        dtype = product_dtype(config.device)
        return Trainer(backbone, FrozenHead(head.to(config.device, dtype)), objective, config.plan, config.device)

    def evaluate(
        self, trained: Trained, questions: Sequence[str], categories: Sequence[str]
    ) -> dict[str, list[Agreement]]:
        asked = self._tokens_of(questions)
        config = self.config
        answers = answer_greedily(self._model(), self._frame(), asked, config.concurrency, config.top, self._taps)
        return by_category(trained.trainer, answers, categories)

    def _objective(self, index: HeadIndex) -> Objective:
        if self.config.num_masks == 0:
            return NextToken(index, self.config.device)
        return MaskedTokens(index, Masks(self.config.num_masks, ANCHOR_SHARE), self.config.device)

    def _head_ids(self, records: Sequence[Record]) -> NDArray[np.int64]:
        """Returns [head_size]. Kept in a file, since a checkpoint belongs to one head."""
        path = self.folder / "head_ids.npy"
        if not path.exists():
            np.save(path, frequent_ids(records, self.target.config.vocab_size, self.config.head_size))
        ids: NDArray[np.int64] = np.load(path)
        return ids

    def _tokens_of(self, texts: Sequence[str]) -> list[list[int]]:
        return list(map(self._encode, texts))

    def _encode(self, text: str) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False)
        return tokens

    @property
    def _taps(self) -> Sequence[int]:
        """Returns the layers after which hidden states are learned from."""
        return ()

    def _frame(self) -> ChatFrame:
        return ChatFrame.of(self._tokenizer)

    def _model(self) -> CpuLlama:
        # CpuLlama removes tensors from its dict, and the trainer needs them too.
        return CpuLlama(self.target.config, dict(self.target.tensors), "none", self.target.config.max_model_len)
