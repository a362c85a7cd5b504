"""KV cache blocks: who holds which.

    all blocks = free + held;  a block's count is the number of sequences that hold it.

A block is free exactly when its count is 0. `check_integrity` compares the counts with
the sequences' own block tables and holds at every moment between two commands.
"""

from collections import Counter
from collections.abc import Iterable

import numpy as np

from paceline.errors import ResourceExhausted


class BlockPool:
    """Hands out block numbers 0 … num_blocks - 1."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._counts = np.zeros(num_blocks, dtype=np.int32)  # [num_blocks]
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        return self._num_free

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """`count` free blocks, each held once.

        Behind block `after` if they are free there, else lowest first: the CPU attention
        reads blocks that lie side by side without copying them.
        Raises ResourceExhausted, and takes nothing, if there are not as many.
        """
        if count > self._num_free:
            raise ResourceExhausted(f"{count} KV cache blocks wanted, {self._num_free} of {self.num_blocks} are free")
        start = 0 if after is None else after + 1
        behind = self._counts[start : start + count]
        if len(behind) == count and not behind.any():
            blocks = list(range(start, start + count))
        else:
            blocks = np.flatnonzero(self._counts == 0)[:count].tolist()
        self._counts[blocks] += 1
        self._num_free -= count
        return blocks

    def share(self, blocks: list[int]) -> None:
        """Counts one more holder for blocks that are held already."""
        assert all(self._counts[block] > 0 for block in blocks), "a free block has nothing to share"
        self._counts[blocks] += 1

    def release(self, blocks: list[int]) -> None:
        """Counts one holder less for each block."""
        for block in blocks:
            assert self._counts[block] > 0, f"block {block} is free already"
            self._counts[block] -= 1
            self._num_free += int(self._counts[block] == 0)

    def check_integrity(self, block_tables: Iterable[list[int]]) -> None:
        """Raises AssertionError unless the counts are what `block_tables` say."""
        held = Counter(block for table in block_tables for block in table)
        for block in range(self.num_blocks):
            assert self._counts[block] == held[block], f"block {block}: count {self._counts[block]}, held {held[block]}"
        assert self._num_free == self.num_blocks - len(held), f"{self._num_free} free, {len(held)} held"
