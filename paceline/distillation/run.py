"""From a target's name to a draft's folder, in steps that can be broken off and taken up again.

FOLDER/corpus/          what the target wrote
FOLDER/head_ids.npy     the tokens the draft can propose
FOLDER/checkpoint.pt    the training as it stands
FOLDER/curve.csv        alpha and agreement on held-out text, by tokens seen; FOLDER/curve.png
FOLDER/draft/           the draft: what `--model` takes
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import PreTrainedTokenizerFast

from paceline.distillation.budget import Budget
from paceline.distillation.conversation import Record
from paceline.distillation.corpus import Corpus, read_shard
from paceline.distillation.curve import Curve
from paceline.distillation.draft import chosen_layers, make_backbone, require_alike, save_draft
from paceline.distillation.evaluation import answer_greedily, by_category
from paceline.distillation.frame import ChatFrame, read_tokenizer
from paceline.distillation.head import HeadIndex, frequent_ids
from paceline.distillation.loss import Agreement, FrozenHead
from paceline.distillation.questions import Questions, read_openings
from paceline.distillation.trainer import Trainer, TrainingPlan
from paceline.distillation.writer import Writer
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.models.weights import LoadedModel
from paceline.errors import ConfigError

# Conversations kept from training, but not more than a tenth: of the oldest, so that a resumed run keeps the same
# ones, every fourth, for the very first to end are short.
HELD_OUT = 128
HELD_OUT_EVERY = 4
HELD_OUT_SHARE = 0.1
MIN_CONVERSATIONS = 10
SHARD_CONVERSATIONS = 512
CHECKPOINT_S = 180.0
# Time between evaluations, in times what one takes.
EVALUATION_PAUSE = 40.0
# Called with what is going on, how much of it is done, in [0, 1], and how many tokens that is.
Progress = Callable[[str, float, int], None]


@dataclass(frozen=True, slots=True)
class DistillConfig:
    """What draft is wanted."""

    target: str
    # Layers, and the model they begin as some of: the target, or a draft to go on with.
    num_layers: int
    begin_with: str
    # For the target's writing; the plan has that of training.
    writing: Budget
    plan: TrainingPlan
    # Where training runs: cpu or cuda.
    device: str = "cpu"
    head_size: int = 16_384
    at_once: int = 128
    top: int = 32


@dataclass(slots=True)
class Pause:
    """When something was last done, and how long that took."""

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
    """A finished training, and what it came to on held-out conversations."""

    trainer: Trainer
    held_out: Agreement


@dataclass(slots=True)
class Distillation:
    """One folder's work."""

    folder: Path
    config: DistillConfig
    target: LoadedModel
    # What its layers begin as some of.
    beginning: LoadedModel
    progress: Progress
    corpus: Corpus = field(init=False)
    _tokenizer: PreTrainedTokenizerFast = field(init=False)

    def __post_init__(self) -> None:
        """Raises ConfigError for a beginning that is no draft of this target."""
        require_alike(self.target, self.beginning)
        chosen_layers(self.config.num_layers, self.beginning.config.num_layers)
        self.corpus = Corpus(self.folder / "corpus")
        self._tokenizer = read_tokenizer(self.target.tokenizer_files)

    def write(self, prompts: Sequence[str] = ()) -> None:
        """Has the target write until there is enough; every second user's turn is one of `prompts`."""
        config = self.config
        written, spent_s = self.corpus.num_written, self.corpus.seconds
        if config.writing.share(written, spent_s) >= 1:
            return
        # Each time another seed: a resumed run must not write the same again.
        seed = config.plan.seed + 1000 * len(self.corpus.shards)
        openings, ends = read_openings(self._encode), self.target.config.eos_token_ids
        questions = Questions(self._tokens_of(prompts), openings, ends, seed)
        writer = Writer(self._model(), self._frame(), config.at_once, config.top, seed, questions, questions.longest)
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
        """Trains, from the checkpoint if there is one, and writes the draft."""
        config = self.config
        records = [record for shard in self.corpus.shards for record in read_shard(shard)]
        if len(records) < MIN_CONVERSATIONS:
            raise ConfigError(
                f"{len(records)} conversations are too few to learn from; let the target write more tokens"
            )
        num_held_out = min(HELD_OUT, int(HELD_OUT_SHARE * len(records)))
        end = num_held_out * HELD_OUT_EVERY
        held_out = [record.answer for record in records[:end:HELD_OUT_EVERY]]
        del records[:end:HELD_OUT_EVERY]
        vocab_size = self.target.config.vocab_size
        head_ids = self._head_ids(records)
        embedding = self.target.tensors["model.embed_tokens.weight"]
        head = self.target.tensors.get("lm_head.weight", embedding).to(torch.bfloat16)
        backbone = make_backbone(self.beginning.config.source, self.beginning.tensors, config.num_layers).to(
            config.device
        )
        frozen = FrozenHead(head[torch.from_numpy(head_ids)].to(config.device))
        trainer = Trainer(backbone, frozen, HeadIndex(head_ids, vocab_size), config.plan, config.device)
        checkpoint, curve = self.folder / "checkpoint.pt", Curve(self.folder)
        if checkpoint.exists():
            trainer.load(checkpoint)
        losses: list[float] = []

        def evaluate() -> Agreement:
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
        save_draft(self.folder / "draft", trainer.backbone, config.target, torch.from_numpy(head_ids))
        return Trained(trainer, evaluate())

    def evaluate(self, trained: Trained, questions: Sequence[str], categories: Sequence[str]) -> dict[str, Agreement]:
        """On the target's greedy answers to prompts that are not its own, by category."""
        asked = self._tokens_of(questions)
        answers = answer_greedily(self._model(), self._frame(), asked, self.config.at_once, self.config.top)
        return by_category(trained.trainer, answers, categories)

    def _head_ids(self, records: Sequence[Record]) -> NDArray[np.int64]:
        """Chosen once: a checkpoint belongs to its head."""
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

    def _frame(self) -> ChatFrame:
        return ChatFrame.of(self._tokenizer)

    def _model(self) -> CpuLlama:
        # It takes the tensors out of what it is given; the trainer needs them too.
        return CpuLlama(self.target.config, dict(self.target.tensors), "none", self.target.config.max_model_len)
