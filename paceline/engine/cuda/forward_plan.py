"""The forward plan: a batch's arrays on the GPU, and their sizes."""

from dataclasses import dataclass

import torch

from paceline.engine.batch import Batch

# Positions that one program of attention reads (see `paged_attention`).
PART_TOKENS = 256
# Rows of one sequence in a tile of attention: in a round, and in a prompt's chunk.
FEW_ROWS, MANY_ROWS = 8, 16


@dataclass(frozen=True, slots=True)
class ForwardShape:
    """Sizes of a forward's arrays."""

    num_rows: int
    num_wanted: int
    num_tiles: int
    # Parts of PART_TOKENS positions in the longest sequence.
    num_parts: int
    # Rows of one sequence in a tile of attention.
    tile_rows: int = FEW_ROWS

    @classmethod
    def of(cls, batch: Batch, batch_invariant: bool, num_ahead: int = 0) -> "ForwardShape":
        """The smallest shape for a batch and `num_ahead` further steps.

        With `batch_invariant` all tiles have the same number of rows.
        """
        longest = max(span.position + span.num_rows for span in batch.spans) + num_ahead
        has_chunk = not batch_invariant and any(span.num_rows > FEW_ROWS for span in batch.spans)
        tile_rows = MANY_ROWS if has_chunk else FEW_ROWS
        num_tiles = sum(-(-span.num_rows // tile_rows) for span in batch.spans)
        return cls(batch.num_rows, len(batch.wanted), num_tiles, -(-longest // PART_TOKENS), tile_rows)

    def table_width(self, block_size: int) -> int:
        """Width of a block table: the blocks of the longest sequence."""
        return -(-self.num_parts * PART_TOKENS // block_size)


@dataclass(frozen=True, slots=True)
class ForwardPlan:
    """Views of one int32 array on the GPU."""

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
