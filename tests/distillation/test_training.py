"""Training learns, stops in time, and resumes after an interruption."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from paceline.distillation.batches import NextToken, make_batch, shuffled
from paceline.distillation.conversations import Record
from paceline.distillation.draft import chosen_layers, frequent_ids, make_backbone
from paceline.distillation.loss import Agreement, Divergence, FrozenHead, HeadIndex
from paceline.distillation.run import Curve
from paceline.distillation.trainer import Budget, Trainer, TrainingPlan
from paceline.errors import ConfigError
from tests.distillation.conftest import VOCAB


def make_trainer(target: LlamaForCausalLM, budget: Budget, overlap_from: float = math.inf) -> Trainer:
    torch.manual_seed(0)
    backbone = make_backbone(target.config, target.state_dict(), 2)
    head = FrozenHead(target.get_input_embeddings().weight.detach().to(torch.bfloat16))
    objective = NextToken(HeadIndex(np.arange(VOCAB), VOCAB))
    return Trainer(backbone, head, objective, TrainingPlan(budget, 256, 1e-2, overlap_from=overlap_from))


def test_a_draft_begins_as_the_targets_first_and_last_layers(target: LlamaForCausalLM) -> None:
    assert chosen_layers(4, 30) == [0, 1, 28, 29]
    assert chosen_layers(3, 30) == [0, 1, 29]
    assert chosen_layers(1, 30) == [0]
    with pytest.raises(ConfigError, match=r"layers is 31; it must be in \[1, 30\]"):
        chosen_layers(31, 30)
    state, theirs = make_backbone(target.config, target.state_dict(), 2).state_dict(), target.state_dict()
    for own, other in ((0, 0), (1, 3)):
        name = "mlp.gate_proj.weight"
        torch.testing.assert_close(state[f"layers.{own}.{name}"], theirs[f"model.layers.{other}.{name}"])


def test_training_raises_alpha(target: LlamaForCausalLM, records: list[Record]) -> None:
    trainer = make_trainer(target, Budget(9_000))
    [before] = trainer.agreement(records)
    losses = list(trainer.run(records))
    [after] = trainer.agreement(records)
    assert trainer.seen >= 9_000
    assert losses[-1] < losses[0] / 2
    assert after.alpha / after.num_rows > 0.7 > 0.3 > before.alpha / before.num_rows


def test_the_overlap_may_come_last(target: LlamaForCausalLM, records: list[Record]) -> None:
    plan = TrainingPlan(Budget(2000), 256, 1e-2, overlap_from=0.75)
    assert [plan.divergence_at(share) for share in (0.0, 0.74, 0.75, 1.0)] == [Divergence.KL] * 2 + [
        Divergence.OVERLAP
    ] * 2
    assert TrainingPlan(Budget(2000)).divergence_at(1.0) is Divergence.KL
    trainer = make_trainer(target, Budget(3000), overlap_from=0.5)
    losses = list(trainer.run(records))
    # An overlap's loss is at most 1; the draft knows little when KL ends.
    assert max(losses[len(losses) // 2 + 1 :]) <= 1 < max(losses[: len(losses) // 2])


def test_the_embedding_is_left_alone(target: LlamaForCausalLM, records: list[Record]) -> None:
    trainer = make_trainer(target, Budget(500))
    list(trainer.run(records))
    theirs = target.get_input_embeddings().weight
    torch.testing.assert_close(trainer.backbone.get_input_embeddings().weight, theirs, rtol=0, atol=0)


def test_a_training_that_was_broken_off_ends_as_if_it_had_not(
    target: LlamaForCausalLM, records: list[Record], tmp_path: Path
) -> None:
    whole = make_trainer(target, Budget(2000))
    list(whole.run(records))
    first = make_trainer(target, Budget(2000))
    for _, _ in zip(range(5), first.run(records), strict=False):
        pass
    first.save(tmp_path / "checkpoint.pt")
    second = make_trainer(target, Budget(2000))
    second.load(tmp_path / "checkpoint.pt")
    list(second.run(records))
    assert second.seen == whole.seen
    for name, value in whole.backbone.state_dict().items():
        torch.testing.assert_close(second.backbone.state_dict()[name], value, rtol=0, atol=0)


def test_every_conversation_is_in_one_batch_of_a_pass(records: list[Record]) -> None:
    batches = list(shuffled(records, 256, seed=3))
    assert sorted(id(record) for batch in batches for record in batch) == sorted(map(id, records))
    for batch in batches:
        assert len(batch) * max(len(record.tokens) for record in batch) <= 256


def test_a_batch_asks_for_each_answer_token_where_it_was_drawn(records: list[Record]) -> None:
    index = HeadIndex(np.arange(VOCAB), VOCAB)
    batch = make_batch(records[:3], index)
    longest = batch.tokens.shape[1]
    at = 0
    for place, record in enumerate(records[:3]):
        for offset in range(record.num_written):
            row = place * longest + record.num_prompt_tokens - 1 + offset
            assert batch.rows[at] == row
            assert batch.tokens.flatten()[row] == record.tokens[record.num_prompt_tokens - 1 + offset]
            assert batch.goal.indices[at].tolist() == record.top_ids[offset].tolist()
            at += 1
    assert at == len(batch.rows)


def test_the_head_knows_the_tokens_that_came_most_often(records: list[Record]) -> None:
    ids = frequent_ids(records, VOCAB, 10)
    answers = np.concatenate([record.tokens[record.num_prompt_tokens :] for record in records])
    counts = np.bincount(answers, minlength=VOCAB)
    assert ids.tolist() == sorted(ids.tolist())
    assert counts[ids].min() >= np.sort(counts)[-10]
    index = HeadIndex(ids, VOCAB)
    assert index.indices_of(torch.tensor([int(ids[3])])).item() == 3
    absent = next(token for token in range(VOCAB) if token not in ids)
    assert index.indices_of(torch.tensor([absent])).item() == 10


def test_what_ends_first_ends_the_work() -> None:
    assert Budget(tokens=100).share(25, 1e9) == 0.25
    assert Budget(seconds=8.0).share(10**9, 4.0) == 0.5
    assert Budget(100, 8.0).share(50, 6.0) == 0.75
    assert Budget(100, 8.0).share(120, 6.0) == 1


def test_training_ends_by_the_clock_too(target: LlamaForCausalLM, records: list[Record]) -> None:
    trainer = make_trainer(target, Budget(seconds=0.2))
    assert list(trainer.run(records))
    assert trainer.share == 1
    assert trainer.spent_s >= 0.2


def test_a_curve_taken_up_again_goes_on_below_its_rows(tmp_path: Path) -> None:
    Curve(tmp_path).add(100, 1.5, [Agreement(5.0, 6, 10)])
    Curve(tmp_path).add(200, 0.5, [Agreement(7.0, 8, 10)])
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines == ["tokens,loss,alpha,top_1", "100,1.5,0.5,0.6", "200,0.5,0.7,0.8"]


def test_a_curve_has_columns_for_each_depth(tmp_path: Path) -> None:
    Curve(tmp_path).add(100, 1.5, [Agreement(5.0, 6, 10), Agreement(3.0, 4, 10)])
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines == ["tokens,loss,alpha,top_1,alpha_2,top_1_2", "100,1.5,0.5,0.6,0.3,0.4"]
