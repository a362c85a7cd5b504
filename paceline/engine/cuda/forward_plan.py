"""The forward plan: a batch's arrays on the GPU, moved in one copy.

A captured graph needs fixed addresses and shapes. Padding rows have position -1, attend to nothing, and are written to
the last block, which no sequence holds.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch, TokenSpan

# Positions that one program of attention reads (see `paged_attention`).
PART_TOKENS = 256
# Rows of one sequence in a tile of attention: in a round, and in a prompt's chunk.
FEW_ROWS, MANY_ROWS = 8, 16


@dataclass(frozen=True, slots=True)
class ForwardShape:
    num_rows: int
    num_wanted: int
    num_tiles: int
    # Parts of PART_TOKENS positions in the longest sequence.
    num_parts: int
    # Rows of one sequence in a tile of attention.
    tile_rows: int = FEW_ROWS

    @classmethod
    def of(cls, batch: Batch, batch_invariant: bool, num_ahead: int = 0) -> "ForwardShape":
        """Returns the smallest shape for a batch and `num_ahead` further steps.

        With `batch_invariant` all tiles have the same number of rows.
        """
        longest = max(span.position + span.num_tokens for span in batch.spans) + num_ahead
        has_chunk = not batch_invariant and any(span.num_tokens > FEW_ROWS for span in batch.spans)
        tile_rows = MANY_ROWS if has_chunk else FEW_ROWS
        num_tiles = sum(-(-span.num_tokens // tile_rows) for span in batch.spans)
        return cls(batch.num_tokens, len(batch.wanted), num_tiles, -(-longest // PART_TOKENS), tile_rows)

    def table_width(self, block_size: int) -> int:
        return -(-self.num_parts * PART_TOKENS // block_size)


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    tokens: torch.Tensor  # [num_rows]
    positions: torch.Tensor  # [num_rows]
    slots: torch.Tensor  # [num_rows]: block * block_size + offset in the block
    wanted: torch.Tensor  # [num_wanted]: rows whose logits matter
    tiles: torch.Tensor  # [num_tiles, 4]: first row, number of rows, position of the first row, sequence's index
    tables: torch.Tensor  # [num_tiles, table_width]: the sequences' block tables, by sequence index
    num_parts: int
    tile_rows: int

    @property
    def num_tiles(self) -> int:
        return len(self.tiles)


PADDING_POSITION = -1


class Staging:
    def __init__(self, shape: ForwardShape, num_blocks: int, block_size: int, device: torch.device) -> None:
        self.shape = shape
        self._block_size = block_size
        self._trash_slot = (num_blocks - 1) * block_size
        width = shape.table_width(block_size)
        self._sizes = (
            (shape.num_rows,), (shape.num_rows,), (shape.num_rows,), (shape.num_wanted,),
            (shape.num_tiles, 4), (shape.num_tiles, width),
        )  # fmt: skip
        total = sum(map(_aligned, self._sizes))
        self._on_host = torch.zeros(total, dtype=torch.int32, pin_memory=device.type == "cuda")
        self._on_device = torch.zeros(total, dtype=torch.int32, device=device)
        self._arrays: list[Array] = [part.numpy() for part in self._split(self._on_host)]
        tokens, positions, slots, wanted, tiles, tables = self._split(self._on_device)
        self.plan = ForwardPlan(tokens, positions, slots, wanted, tiles, tables, shape.num_parts, shape.tile_rows)

    def fill(self, batch: Batch) -> None:
        """Writes a batch, which must fit the shape, and starts its copy to the GPU."""
        tokens, positions, slots, wanted, tiles, tables = self._arrays
        count = min(batch.num_tokens, len(tokens))
        tokens[:count], tokens[count:] = batch.tokens[:count], 0
        positions[:], slots[:], wanted[:], tiles[:] = PADDING_POSITION, self._trash_slot, 0, 0
        wanted[: len(batch.wanted)] = batch.wanted
        self._place(batch.spans, positions, slots)
        num_tiles = self._tile(batch.spans, tiles, tables)
        padding = tiles[num_tiles:][: len(tokens) - count]
        padding[:, 0], padding[:, 1], padding[:, 2] = count + np.arange(len(padding)), 1, PADDING_POSITION
        self._on_device.copy_(self._on_host, non_blocking=True)

    def _place(self, spans: Seq[TokenSpan], positions: Array, slots: Array) -> None:
        for span in spans:
            own = slice(span.first_token, span.first_token + span.num_tokens)
            at = span.position + np.arange(span.num_tokens)
            positions[own] = at
            slots[own] = np.asarray(span.blocks)[at // self._block_size] * self._block_size + at % self._block_size

    def _tile(self, spans: Seq[TokenSpan], tiles: Array, tables: Array) -> int:
        num_tiles, tile_rows = 0, self.shape.tile_rows
        for sequence_index, span in enumerate(spans):
            # Includes the blocks that are reserved for the next steps.
            used = min(len(span.blocks), tables.shape[1])
            tables[sequence_index, :used] = span.blocks[:used]
            for done in range(0, span.num_tokens, tile_rows):
                num_rows = min(tile_rows, span.num_tokens - done)
                tiles[num_tiles] = span.first_token + done, num_rows, span.position + done, sequence_index
                num_tiles += 1
        return num_tiles

    def _split(self, array: torch.Tensor) -> list[torch.Tensor]:
        parts = array.split([_aligned(size) for size in self._sizes])
        return [part[: math.prod(size)].view(size) for part, size in zip(parts, self._sizes, strict=True)]


def _aligned(size: tuple[int, ...]) -> int:
    """Returns the integers reserved for an array of this shape, a multiple of 4: kernels need 16-byte alignment."""
    return -(-math.prod(size) // 4) * 4
