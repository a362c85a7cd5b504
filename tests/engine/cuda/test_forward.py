"""The GPU engine's forward pass gives the CPU engine's logits, and each row the bits it has alone."""

import numpy as np
import pytest
import torch

from paceline.engine.batch import Batch, BatchBuilder, TokenSpan
from paceline.engine.cuda import paged_attention as attention
from paceline.engine.cuda.forward_plan import ForwardPlan, ForwardShape, Staging
from paceline.engine.cuda.paged_attention import CudaPagedAttention, Scoring
from tests.engine.cuda.device import DEVICE
from tests.engine.cuda.feeding import GpuFeeder
from tests.engine.feeding import Feeder, Rows, load_llama

TOKENS = [int(token) for token in np.random.default_rng(0).integers(512, size=300)]
# Out of order, as a pool gives them out.
BLOCKS = [9, 3, 17, 30, 1, 4, 25, 11, 8, 20, 2, 14, 6, 28, 5, 22, 13, 0, 19, 27, 10, 24, 7, 16, 12, 29]


@pytest.fixture(scope="module")
def feeder() -> GpuFeeder:
    """Of one layer: Triton's interpreter takes seconds for each."""
    return GpuFeeder.of("dummy:tiny", torch.float32, num_layers=1)


def expected(num_tokens: int, num_layers: int | None = None) -> torch.Tensor:
    """By the CPU engine: [num_tokens, vocab_size]."""
    feeder = Feeder(load_llama("dummy:tiny", num_layers=num_layers))
    return feeder.feed_split(TOKENS[:num_tokens], [num_tokens])


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("batch_invariant", "sizes"),
    [
        (True, [30, 1, 5]),
        (False, [33, 3]),
        pytest.param(True, [260, 1, 5, 34], marks=pytest.mark.campaign),
        pytest.param(False, [290, 10], marks=pytest.mark.campaign),
    ],
)
def test_logits_are_the_cpu_engines(
    feeder: GpuFeeder, batch_invariant: bool, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also across stretches of 256 positions, and in the tiles that a long chunk has."""
    monkeypatch.setattr(feeder, "batch_invariant", batch_invariant)
    theirs, done = expected(sum(sizes), num_layers=1), 0
    for size in sizes:
        [logits] = feeder.feed(Rows(TOKENS[done : done + size], done, BLOCKS))
        close(logits, theirs[done : done + size])
        done += size


def test_library_products_give_the_same_logits() -> None:
    """Of all layers: cuBLAS, which a server takes that was not told to be batch invariant."""
    [logits] = GpuFeeder.of("dummy:tiny", torch.float32, batch_invariant=False).feed(Rows(TOKENS[:20], 0, BLOCKS))
    close(logits, expected(20))


def test_states_are_the_cpu_engines_and_change_no_bit() -> None:
    """Of the embedding and of each layer, also of rows whose logits nobody wants."""
    feeder, model = GpuFeeder.of("dummy:tiny", torch.float32, batch_invariant=False), load_llama("dummy:tiny")
    builder, attention = BatchBuilder(), model.make_cache(4, 16)
    builder.add(TOKENS[:20], 0, [2, 0], [False] * 20)
    batch = builder.build(model.padded(20))
    _, theirs = model.forward_with_states(batch, attention, attention.plan(batch.spans), (0, 1, 2))
    states = {layer: torch.empty((20, model.config.hidden_size), device=DEVICE) for layer in range(3)}
    [logits] = feeder.feed(Rows(TOKENS[:20], 0, BLOCKS), states=states)
    for ours, other in zip(states.values(), theirs, strict=True):
        close(ours.cpu(), torch.from_numpy(other[:20]))
    assert torch.equal(logits, feeder.feed(Rows(TOKENS[:20], 0, BLOCKS))[0])


@pytest.mark.parametrize("start", [14, pytest.param(254, marks=pytest.mark.campaign)])
def test_a_row_has_the_bits_it_has_alone(feeder: GpuFeeder, start: int) -> None:
    """Whatever is beside it: other rows of a round, other sequences, padding, a longer table."""
    # Across the end of a block, and of a stretch.
    drafts = TOKENS[start : start + 5]
    feeder.feed(Rows(TOKENS[:start], 0, BLOCKS))
    alone = torch.cat([feeder.feed(Rows([token], start + i, BLOCKS))[0] for i, token in enumerate(drafts)])
    [together] = feeder.feed(Rows(drafts, start, BLOCKS))
    assert torch.equal(alone, together)
    spare = [block for block in range(31) if block not in BLOCKS]
    beside, _ = feeder.feed(Rows(drafts, start, BLOCKS), Rows(TOKENS[:20], 0, spare))
    assert torch.equal(alone, beside)
    [padded] = feeder.feed(Rows(drafts, start, BLOCKS), shape=ForwardShape(8, 8, 8, 4))
    assert torch.equal(alone, padded)


def test_results_of_stretches_take_turns(feeder: GpuFeeder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they would take too much at once: the same bits."""
    [at_once] = feeder.feed(Rows(TOKENS[:20], 0, BLOCKS))
    # A tile's.
    monkeypatch.setattr(attention, "RESULT_BYTES", 1)
    [in_turns] = feeder.feed(Rows(TOKENS[:20], 0, BLOCKS))
    assert torch.equal(at_once, in_turns)


def test_padding_rows_attend_to_nothing(feeder: GpuFeeder) -> None:
    """So that they hold no numbers of chance, which may overflow."""
    taken = []
    attend = feeder.attention.attend

    def spy(layer: int, queries: torch.Tensor, plan: ForwardPlan, scoring: Scoring) -> torch.Tensor:
        taken.append(attend(layer, queries, plan, scoring))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(feeder.attention, "attend", spy)
        feeder.feed(Rows(TOKENS[:3], 0, BLOCKS), Rows(TOKENS[:2], 0, BLOCKS[1:]), shape=ForwardShape(8, 8, 8, 1))
    assert all((each[5:] == 0).all() and (each[:5] != 0).any(dim=(1, 2)).all() for each in taken)


def test_padding_rows_write_where_nobody_reads(feeder: GpuFeeder) -> None:
    before = feeder.attention.keys.clone()
    feeder.feed(Rows(TOKENS[:1], 0, BLOCKS), shape=ForwardShape(8, 8, 8, 1))
    changed = (feeder.attention.keys != before).any(dim=(0, 2, 3, 4)).nonzero().flatten().tolist()
    assert set(changed) <= {BLOCKS[0], feeder.num_blocks - 1}


def test_rows_behind_are_not_read(feeder: GpuFeeder) -> None:
    """What stands in a block behind a row may be anything but NaN."""
    [clean] = feeder.feed(Rows(TOKENS[:20], 0, BLOCKS))
    feeder.attention.keys[:, BLOCKS[1], 4:] = 1e4
    feeder.attention.values[:, BLOCKS[1], 4:] = 1e4
    [dirty] = feeder.feed(Rows(TOKENS[:20], 0, BLOCKS))
    assert torch.equal(clean, dirty)


def test_rows_of_a_tile_may_see_those_behind_them() -> None:
    """All rows of a block, which is across the end of a stretch, see all of it and what is before it."""
    start, count, head_dim = 122, 10, 16
    generator = torch.Generator().manual_seed(1)
    queries, keys, values = (torch.randn(rows, 2, head_dim, generator=generator) for rows in (count, 132, 132))
    attention = CudaPagedAttention(1, 12, 16, 2, head_dim, torch.float32, DEVICE)
    table = [9, 3, 7, 0, 1, 4, 5, 10, 8]
    positions = torch.arange(start + count)
    slots = torch.tensor(table)[positions // 16] * 16 + positions % 16
    attention.keys[0].flatten(0, 1)[slots], attention.values[0].flatten(0, 1)[slots] = (
        keys.to(DEVICE),
        values.to(DEVICE),
    )
    batch = Batch(np.zeros(count, np.int64), [TokenSpan(0, count, start, table)], np.empty(0, np.int64))
    shape = ForwardShape.of(batch, batch_invariant=False, num_together=count)
    staging = Staging(shape, attention.num_blocks, attention.block_size, DEVICE)
    staging.fill(batch)
    ours = attention.attend(0, queries.to(DEVICE), staging.plan, Scoring(0.25, sees_ahead=True))
    scores = torch.einsum("qhd,khd->hqk", queries, keys) * 0.25
    close(ours.cpu(), torch.einsum("hqk,khd->qhd", scores.softmax(-1), values))
