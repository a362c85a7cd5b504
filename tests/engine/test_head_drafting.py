"""What a head is given to read, by the batches of its forward passes."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.engine import block_drafting, head_drafting
from paceline.engine.batch import Batch, TokenSpan
from paceline.engine.block_drafting import BlockDrafting
from paceline.engine.head_drafting import HeadDrafting, measured_drafts
from paceline.engine.sampling.specs import ConfidentSample


class Recorded(HeadDrafting):
    def __init__(self) -> None:
        super().__init__(block_size=8)
        self.batches: list[Batch] = []

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        raise AssertionError("no block is copied")

    def _keep(self, states: Any, spans: Any) -> None:
        pass

    def _forward(self, batch: Batch, hidden: Any) -> Any:
        self.batches.append(batch)
        return np.zeros((len(batch.wanted), 1))

    def _samples(self, outputs: Any, specs: Any) -> Any:
        return [ConfidentSample(0, 0.5)] * len(outputs)


def ask(drafting: HeadDrafting, lengths: list[int]) -> None:
    """For drafts of sequences with so many tokens before the newest one, of which the head has read none."""
    shares, end = [], 0
    for length in lengths:
        tokens, [drafts] = list(range(end, end + length)), measured_drafts(1)
        drafts.position, drafts.newest, end = length + 1, end + length, end + length + 1
        sequence = SimpleNamespace(
            tokens=tokens, blocks=[0], num_head_read=0, options=SimpleNamespace(uses_draft_head=True)
        )
        shares.append((SimpleNamespace(sequence=sequence, next_drafts=drafts, count_drafting=lambda _: None), length))
    drafting.run(shares, SimpleNamespace(spans=[None] * len(lengths)), None)  # type: ignore[arg-type]


def run(lengths: list[int]) -> list[Batch]:
    drafting = Recorded()
    ask(drafting, lengths)
    return drafting.batches


@pytest.mark.parametrize("lengths", [[5], [16], [15], [40], [3, 12], [3, 13], [16, 1, 40], [4, 4, 4, 4], [1] * 20])
def test_a_head_reads_few_tokens_at_a_time_and_each_once(lengths: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head_drafting, "MAX_ROWS", 16)
    batches = run(lengths)
    assert all(batch.num_tokens <= max(16, len(lengths)) for batch in batches)
    read = np.concatenate([batch.tokens for batch in batches])
    assert sorted(read) == list(range(sum(lengths) + len(lengths)))
    # The newest ones together.
    assert [len(batch.wanted) for batch in batches] == [0] * (len(batches) - 1) + [len(lengths)]


def test_few_tokens_are_read_in_one_pass() -> None:
    assert len(run([3, 12, 40])) == 1


class RecordedBlocks(BlockDrafting, Recorded):
    """Notes the context's spans and the blocks' of each forward pass."""

    _config = SimpleNamespace(block_size=4, mask_token_id=7)  # type: ignore[assignment]

    def __init__(self) -> None:
        super().__init__()
        self.passes: list[tuple[list[TokenSpan], list[TokenSpan]]] = []

    def _run(self, context: list[TokenSpan], blocks: list[TokenSpan], tokens: list[int]) -> Any:
        self.passes.append((context, blocks))
        return np.zeros((len(tokens) - len(blocks), 1))


@pytest.mark.parametrize("lengths", [[5], [16], [17], [40], [3, 12], [3, 14], [16, 1, 40], [4] * 7, [0] * 20])
def test_blocks_are_few_at_a_time_and_the_context_is_read_once(
    lengths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_drafting, "MAX_ROWS", 16)
    drafting = RecordedBlocks()
    ask(drafting, lengths)
    for spans in (each for one in drafting.passes for each in one):
        assert sum(span.num_tokens for span in spans) <= 16
    assert sum(span.num_tokens for context, _ in drafting.passes for span in context) == sum(lengths)
    assert [span.position for _, blocks in drafting.passes for span in blocks] == lengths
