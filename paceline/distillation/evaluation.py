"""Evaluation of a draft on prompts that it has not seen: alpha and agreement, on the target's greedy answers."""

from collections import defaultdict
from collections.abc import Sequence

from paceline.distillation.corpus.conversation import Question, Record, Style
from paceline.distillation.corpus.frame import ChatFrame
from paceline.distillation.corpus.writer import Writer
from paceline.distillation.training.loss import Agreement
from paceline.distillation.training.trainer import Trainer
from paceline.engine.cpu.llama import CpuLlama

GREEDY = Style(temperature=0.0, top_p=1.0, max_tokens=80)


def answer_greedily(
    model: CpuLlama, frame: ChatFrame, questions: Sequence[list[int]], at_once: int, top: int
) -> list[Record]:
    """The target's greedy answers to questions given as tokens, in the order of the questions."""
    longest = max(map(len, questions), default=0)
    asked = (Question(question, is_whole=True) for question in questions)
    writer = Writer(model, frame, at_once, top, 0, asked, longest, (GREEDY,))
    return [record for _, record in sorted(writer.records(), key=lambda pair: pair[0])]


def by_category(trainer: Trainer, records: Sequence[Record], categories: Sequence[str]) -> dict[str, list[Agreement]]:
    """Agreement by depth for each category, in the order in which the categories first appear."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record, category in zip(records, categories, strict=True):
        groups[category].append(record)
    return {category: trainer.agreement(group) for category, group in groups.items()}
