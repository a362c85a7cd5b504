"""A batch as a forward on a GPU reads it, and how large its arrays are."""

from dataclasses import dataclass

import torch

from paceline.engine.batch import Batch

# Positions that one program of attention goes through (see `attention`).
PART_TOKENS = 256
# Rows of one sequence in its tile: of a round, or of a prompt's chunk.
FEW_ROWS, MANY_ROWS = 8, 16


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """Sizes of a forward's arrays."""

    num_rows: int
    num_wanted: int
    num_tiles: int
    # Stretches of PART_TOKENS positions, in the longest sequence.
    num_parts: int
    # Rows of one sequence in a tile of attention.
    tile_rows: int = FEW_ROWS

    @classmethod
    def of(cls, batch: Batch, batch_invariant: bool, num_ahead: int = 0) -> "ForwardShape":
        """The least that holds a batch and the steps ahead; `batch_invariant`: a row's tile has the same size in any company."""
        longest = max(span.position + span.num_rows for span in batch.spans) + num_ahead
        has_chunk = not batch_invariant and any(span.num_rows > FEW_ROWS for span in batch.spans)
        tile_rows = MANY_ROWS if has_chunk else FEW_ROWS
        num_tiles = sum(-(-span.num_rows // tile_rows) for span in batch.spans)
        return cls(batch.num_rows, len(batch.wanted), num_tiles, -(-longest // PART_TOKENS), tile_rows)

    def table_width(self, block_size: int) -> int:
        """Blocks of the longest sequence."""
        return -(-self.num_parts * PART_TOKENS // block_size)


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """Views of one array, on the GPU."""

    tokens: torch.Tensor  # [num_rows]
    positions: torch.Tensor  # [num_rows]
    slots: torch.Tensor  # [num_rows], block * block_size + place in it
    wanted: torch.Tensor  # [num_wanted] rows whose logits matter
    tiles: torch.Tensor  # [num_tiles, 4]: first row, rows, position of the first, rank of the sequence
    tables: torch.Tensor  # [num_tiles, table_width]: the sequences' blocks
    num_parts: int
    tile_rows: int

    @property
    def num_tiles(self) -> int:
        return len(self.tiles)
