"""The next step's forward plan, made from a step's samples on the GPU: one row for each sequence that goes on."""

from dataclasses import replace

import torch
import triton
import triton.language as tl

from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.sampling.table import NUM_FOUND, TOKEN, SampleTable


@triton.jit(do_not_specialize=["step", "table_width"])
def _plan_next_step(
    samples, sequence_indices, num_steps, first_positions, wanted, tables, tokens, positions, slots, rows, tiles,
    step, table_width, trash_slot, BLOCK_TOKENS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0)
    sequence_index = tl.load(sequence_indices + row)
    goes_on = tl.load(num_steps + row) >= step
    position = tl.where(goes_on, tl.load(first_positions + tl.load(wanted + row)) + step, -1)
    at = tl.maximum(position, 0)
    block = tl.load(tables + sequence_index.to(tl.int64) * table_width + at // BLOCK_TOKENS)
    tl.store(tokens + row, tl.load(samples + row * NUM_FOUND + TOKEN).to(tl.int32))
    tl.store(positions + row, position)
    tl.store(slots + row, tl.where(goes_on, block * BLOCK_TOKENS + at % BLOCK_TOKENS, trash_slot))
    tl.store(rows + row, row)
    tl.store(tiles + row * 4, row)
    # A sequence that does not go on has position -1: its row attends to nothing.
    tl.store(tiles + row * 4 + 1, 1)
    tl.store(tiles + row * 4 + 2, position)
    tl.store(tiles + row * 4 + 3, sequence_index)


def plan_next_step(
    first: ForwardPlan, samples: SampleTable, sequence_indices: torch.Tensor, num_steps: torch.Tensor, step: int,
    block_size: int, trash_slot: int,
) -> ForwardPlan:  # fmt: skip
    """The plan of step number `step` after `first`, which feeds the tokens of `samples`.

    sequence_indices: [num_wanted] int32, each wanted row's sequence; num_steps: [num_wanted] int32, the number of next
    steps that each row takes part in.
    """
    [count] = first.wanted.shape
    tokens, positions, slots, rows = (
        torch.empty(count, dtype=torch.int32, device=sequence_indices.device) for _ in range(4)
    )
    tiles = torch.empty((count, 4), dtype=torch.int32, device=sequence_indices.device)
    _plan_next_step[(count,)](
        samples.numbers, sequence_indices, num_steps, first.positions, first.wanted, first.tables,
        tokens, positions, slots, rows, tiles, step, first.tables.shape[1], trash_slot, BLOCK_TOKENS=block_size,
    )  # fmt: skip
    return replace(first, tokens=tokens, positions=positions, slots=slots, wanted=rows, tiles=tiles)
