"""From what was drawn to the plan of the step behind it, without the host: a row for each sequence that goes on."""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.sampling.table import NUM_FOUND, TOKEN, SampleTable


@triton.jit(do_not_specialize=["step", "table_width"])
def _follow(
    samples, ranks, num_steps, first_positions, wanted, tables, tokens, positions, slots, rows, tiles,
    step, table_width, trash_slot, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    rank = tl.load(ranks + row)
    goes_on = tl.load(num_steps + row) >= step
    position = tl.where(goes_on, tl.load(first_positions + tl.load(wanted + row)) + step, -1)
    at = tl.maximum(position, 0)
    block = tl.load(tables + rank.to(tl.int64) * table_width + at // BLOCK_TOKENS)
    tl.store(tokens + row, tl.load(samples + row * NUM_FOUND + TOKEN).to(tl.int32))
    tl.store(positions + row, position)
    tl.store(slots + row, tl.where(goes_on, block * BLOCK_TOKENS + at % BLOCK_TOKENS, trash_slot))
    tl.store(rows + row, row)
    tl.store(tiles + row * 4, row)
    # At position -1 it attends to nothing.
    tl.store(tiles + row * 4 + 1, 1)
    tl.store(tiles + row * 4 + 2, position)
    tl.store(tiles + row * 4 + 3, rank)


def follow(
    first: ForwardPlan, samples: SampleTable, ranks: torch.Tensor, num_steps: torch.Tensor, step: int,
    block_size: int, trash_slot: int,
) -> ForwardPlan:  # fmt: skip
    """The plan of the `step`-th step behind `first`, feeding the tokens drawn.

    For each row that was wanted: ranks, of its sequence; num_steps, in how many steps ahead it goes on: both [num_wanted] int32.
    """
    [count] = first.wanted.shape
    tokens, positions, slots, rows = (torch.empty(count, dtype=torch.int32, device=ranks.device) for _ in range(4))
    tiles = torch.empty((count, 4), dtype=torch.int32, device=ranks.device)
    _follow[(count,)](
        samples.numbers, ranks, num_steps, first.positions, first.wanted, first.tables, tokens, positions, slots, rows,
        tiles, step, first.tables.shape[1], trash_slot, BLOCK_TOKENS=block_size,
    )  # fmt: skip
    return replace(first, tokens=tokens, positions=positions, slots=slots, wanted=rows, tiles=tiles)
