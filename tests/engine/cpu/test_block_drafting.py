"""What a block drafter drafts behind a step is what `speculators` computes of the accepted tokens (tests/data/dflash)."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.engine import block_drafting
from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.block_drafting import CpuBlockDrafting
from paceline.engine.sampling.specs import Argmax
from paceline.engine.scheduling.job import NextDrafts
from paceline.sampling_params import SamplingParams
from tests.engine.cpu.test_dflash import VARIANTS, Blocks
from tests.engine.cpu.test_eagle import lender, made_for

BLOCK_SIZE, NUM_BLOCKS = 8, 8
TABLES = ([2, 0, 3, 1], [7, 5, 4, 6])
LIKELIEST = Argmax(SamplingParams(temperature=0, seed=0), (), wants_confidence=True)


class Drafting:
    """Two sequences with the same tokens, at different anchors, in one cache."""

    def __init__(self, variant: str) -> None:
        self.blocks = Blocks(variant)
        self.sampled_at: list[int] = []
        self.expected = self.blocks.expected
        float32 = np.dtype(np.float32)
        model = lender(self.expected, made_for())
        self.drafting = CpuBlockDrafting(model, self.blocks.head, NUM_BLOCKS, BLOCK_SIZE, float32, float32)
        self.sequences = [
            SimpleNamespace(
                tokens=[], blocks=table, num_head_read=0, options=SimpleNamespace(uses_draft_head=True), plan_state=None
            )
            for table in TABLES
        ]

    def step(self, anchors: list[int], num_fed_behind: int = 2, num_asked: int = 5, least: float = 0.0) -> list[Any]:
        """Feeds each sequence up to its anchor and some rejected drafts, and drafts behind the anchor."""
        builder, shares, rows = BatchBuilder(), [], []
        for sequence, anchor in zip(self.sequences, anchors, strict=True):
            start, end = len(sequence.tokens), anchor + num_fed_behind
            fed = self.expected["tokens"][start:end].tolist()
            builder.add(fed, start, sequence.blocks, [False] * len(fed))
            sequence.tokens += fed
            newest = int(self.expected["tokens"][anchor])
            drafts = NextDrafts(num_asked, least, anchor + 1, newest, self._spec)
            job = SimpleNamespace(sequence=sequence, next_drafts=drafts, count_drafting=lambda _: None)
            shares.append((job, len(fed)))
            # What is behind the anchor is of other tokens than those that follow.
            is_rejected = torch.arange(start, end)[:, None] >= anchor
            rows.append(torch.where(is_rejected, -9.0, self.expected["hidden"][start:end]))
        batch = builder.build(builder.num_tokens)
        states = torch.cat(rows).numpy().reshape(batch.num_tokens, 3, -1).transpose(1, 0, 2)
        self.drafting.run(shares, batch, [np.ascontiguousarray(each) for each in states])
        for sequence, anchor in zip(self.sequences, anchors, strict=True):
            # As a coordinator truncates.
            del sequence.tokens[anchor:]
            sequence.num_head_read = min(sequence.num_head_read, anchor)
        return [job.next_drafts for job, _ in shares]

    def _spec(self, position: int) -> Argmax:
        self.sampled_at.append(position)
        return LIKELIEST

    def reference(self, anchor: int, name: str = "logits") -> tuple[list[int], list[float]]:
        logits = self.expected[name][self.expected["anchors"].tolist().index(anchor)]
        most = logits.softmax(-1).max(-1)
        return self.blocks.ids[most.indices.numpy()].tolist(), most.values.tolist()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("most_at_a_time", [3, block_drafting.MAX_ROWS])
def test_drafts_follow_the_anchor(variant: str, most_at_a_time: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_drafting, "MAX_ROWS", most_at_a_time)
    drafting = Drafting(variant)
    for anchors in ([1, 8], [2, 9], [7, 17], [9, 17]):
        for drafts, anchor in zip(drafting.step(anchors), anchors, strict=True):
            tokens, confidences = drafting.reference(anchor)
            assert drafts.tokens == tokens
            assert drafts.confidences == pytest.approx(confidences, rel=1e-5)


def test_fewer_drafts_are_a_smaller_block() -> None:
    drafting = Drafting("plain")
    for drafts, anchor in zip(drafting.step([7, 17], num_asked=2), (7, 17), strict=True):
        assert (drafts.tokens, drafts.confidences) == (
            drafting.reference(anchor, "few")[0],
            pytest.approx(drafting.reference(anchor, "few")[1], rel=1e-5),
        )


def test_no_more_is_drafted_than_a_block_has() -> None:
    drafting = Drafting("plain")
    for drafts, anchor in zip(drafting.step([7, 17], num_asked=16), (7, 17), strict=True):
        assert drafts.tokens == drafting.reference(anchor)[0]


def test_each_draft_has_the_noise_of_its_position() -> None:
    drafting = Drafting("plain")
    drafting.step([7, 17])
    assert drafting.sampled_at == [*range(8, 13), *range(18, 23)]


@pytest.mark.parametrize("num_sure", range(5))
def test_drafts_end_with_the_one_that_is_not_sure(num_sure: int) -> None:
    tokens, confidences = Drafting("plain").reference(7)
    least = math.prod(confidences[: num_sure + 1]) * 1.01
    [drafts, _] = Drafting("plain").step([7, 17], least=least)
    assert drafts.tokens == tokens[: num_sure + 1]
