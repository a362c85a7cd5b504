"""Mask tokens: each sees what it may, learns what follows its position, and comes to be right."""

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaForCausalLM

from paceline.distillation.batches import MaskedTokens, Masks, anchors_of, lay, make_masked_batch
from paceline.distillation.conversations import Record
from paceline.distillation.draft import make_backbone
from paceline.distillation.loss import FrozenHead, HeadIndex
from paceline.distillation.trainer import Budget, Trainer, TrainingPlan
from tests.distillation.conftest import VOCAB

MASKS = Masks(per_anchor=3, anchor_share=0.5)
INDEX = HeadIndex(np.arange(VOCAB), VOCAB)


def make_trainer(target: LlamaForCausalLM, budget: Budget) -> Trainer:
    torch.manual_seed(0)
    backbone = make_backbone(target.config, target.state_dict(), 2, MASKS.per_anchor)
    head = FrozenHead(target.get_input_embeddings().weight.detach().to(torch.bfloat16))
    return Trainer(backbone, head, MaskedTokens(INDEX, MASKS), TrainingPlan(budget, 256, 1e-2))


def test_anchors_are_some_of_the_positions_after_which_a_mask_token_can_learn(records: list[Record]) -> None:
    random = np.random.default_rng(0)
    for record in records:
        anchors = anchors_of(record, MASKS, random)
        assert sorted(set(anchors.tolist())) == anchors.tolist()
        assert record.num_prompt_tokens - 1 <= anchors.min() <= anchors.max() <= len(record.tokens) - 3
        assert abs(len(anchors) - 0.5 * (record.num_written - 1)) <= 1


def test_a_token_learns_the_one_after_its_position(records: list[Record]) -> None:
    record = records[0]
    laid = lay(record, np.array([4, 6]), 3, VOCAB)
    num_text = len(record.tokens) - 1
    assert laid.tokens[:num_text].tolist() == record.tokens[:-1].tolist()
    assert laid.tokens[num_text : num_text + 6].tolist() == [VOCAB, VOCAB + 1, VOCAB + 2] * 2
    assert laid.positions[num_text : num_text + 6].tolist() == [5, 6, 7, 7, 8, 9]
    for row, depth, goal in zip(laid.rows, laid.depths, laid.goals, strict=True):
        assert record.top_ids[goal, 0] == record.tokens[laid.positions[row] + 1]
        assert depth == (0 if row < num_text else laid.tokens[row] - VOCAB + 1)


def test_masks_past_the_end_are_left_out(records: list[Record]) -> None:
    record = records[0]
    last = len(record.tokens) - 3
    laid = lay(record, np.array([last]), 3, VOCAB)
    assert laid.positions[len(record.tokens) - 1 :].tolist() == [last + 1]


@torch.no_grad()
def test_a_mask_token_sees_only_its_text_and_its_own_masks(
    target: LlamaForCausalLM,
    records: list[Record],
) -> None:
    """In a batch of many anchors it comes out as by itself, after the text up to its anchor."""
    backbone = make_backbone(target.config, target.state_dict(), 2, MASKS.per_anchor)
    backbone.mask_vectors.data = torch.randn_like(backbone.mask_vectors)
    embedding = torch.cat([backbone.get_input_embeddings().weight, backbone.mask_vectors])
    some = records[:3]
    batch = make_masked_batch(some, MASKS, INDEX, VOCAB, np.random.default_rng(1))
    together = backbone(
        inputs_embeds=embedding[batch.tokens], position_ids=batch.positions, attention_mask=batch.sees, use_cache=False
    ).last_hidden_state
    random = np.random.default_rng(1)
    num_compared = 0
    for number, record in enumerate(some):
        num_text = len(record.tokens) - 1
        row = num_text
        for anchor in anchors_of(record, MASKS, random):
            num_masks = min(MASKS.per_anchor, num_text - 1 - anchor)
            ids = [*record.tokens[: anchor + 1].tolist(), *range(VOCAB, VOCAB + num_masks)]
            alone = backbone(inputs_embeds=embedding[torch.tensor([ids])], use_cache=False).last_hidden_state
            torch.testing.assert_close(
                together[number, row : row + num_masks], alone[0, anchor + 1 :], rtol=1e-4, atol=1e-4
            )
            row += num_masks
            num_compared += num_masks
    assert num_compared > 20


def test_training_makes_mask_tokens_right(target: LlamaForCausalLM, records: list[Record]) -> None:
    trainer = make_trainer(target, Budget(12_000))
    before = trainer.agreement(records)
    assert before[0].num_rows == sum(record.num_written for record in records)
    list(trainer.run(records))
    for depth, each in enumerate(trainer.agreement(records)):
        assert each.mean_top_1 > max(0.5, before[depth].mean_top_1 + 0.2), depth


def test_a_checkpoint_holds_the_mask_vectors(
    target: LlamaForCausalLM,
    records: list[Record],
    tmp_path: Path,
) -> None:
    trainer = make_trainer(target, Budget(1000))
    list(trainer.run(records))
    trainer.save(tmp_path / "checkpoint.pt")
    other = make_trainer(target, Budget(1000))
    other.load(tmp_path / "checkpoint.pt")
    torch.testing.assert_close(other.backbone.mask_vectors, trainer.backbone.mask_vectors, rtol=0, atol=0)
