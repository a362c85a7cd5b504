"""KV cache blocks: who holds which.

    all blocks = free + cached + held

A block's count is the number of sequences that hold it. One that nobody holds is cached if a
context's beginning may find it again (see `prefix`), else free; cached blocks are given out when
no free ones are left. `check_integrity` compares the counts with the sequences' own block tables
and holds at every moment between two commands.
"""

from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from paceline.engine.prefix import PrefixIndex
from paceline.errors import ResourceExhausted

# Blocks left free between sequences while there are many: each can grow without being scattered.
ROOM = 16


class BlockPool:
    """Hands out block numbers 0 … num_blocks - 1."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        copy_blocks: Callable[[list[int], list[int]], None],
        caches_prefixes: bool = True,
    ) -> None:
        """`copy_blocks(sources, destinations)` copies keys and values."""
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.copy_blocks = copy_blocks
        self.caches_prefixes = caches_prefixes
        self.prefixes = PrefixIndex()
        self._counts = np.zeros(num_blocks, dtype=np.int32)  # [num_blocks]
        # Held or cached.
        self._is_used = np.zeros(num_blocks, dtype=bool)  # [num_blocks]
        self._num_held = 0

    @property
    def num_free(self) -> int:
        """Blocks that can be had: free or cached."""
        return self.num_blocks - self._num_held

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def count_freed(self, block_tables: Iterable[list[int]]) -> int:
        """How many blocks nobody would hold if all of `block_tables` let go."""
        let_go = Counter(block for table in block_tables for block in table)
        return sum(self._counts[block] == count for block, count in let_go.items())

    def is_private(self, block: int) -> bool:
        """Whether a held block may be written to: one holder, and nobody else can find it."""
        return bool(self._counts[block] == 1) and block not in self.prefixes

    def allocate(self, count: int, after: int | None = None) -> list[int]:
        """`count` blocks, each held once.

        Side by side where that can be, since the CPU attention reads such blocks without copying them:
        behind block `after`, or with None where a new sequence has room to grow. Cached ones only in want of free ones.
        Raises ResourceExhausted, and takes nothing, if there are not as many.
        """
        if count > self.num_free:
            raise ResourceExhausted(f"{count} KV cache blocks wanted, {self.num_free} of {self.num_blocks} are free")
        start = self._start_with_room(count) if after is None else after + 1
        behind = self._is_used[start : start + count]
        if len(behind) == count and not behind.any():
            blocks = list(range(start, start + count))
        else:
            blocks = np.flatnonzero(~self._is_used)[:count].tolist()
            blocks += sorted(self.prefixes.evict() for _ in range(count - len(blocks)))
        self._counts[blocks] = 1
        self._is_used[blocks] = True
        self._num_held += count
        return blocks

    def _start_with_room(self, count: int) -> int:
        """Where a new sequence, and the one before it, can grow: in the lowest stretch with room enough for
        both, so that little memory is touched, or in the middle of the longest."""
        edges = np.flatnonzero(np.diff(self._is_used, prepend=True, append=True))
        starts, ends = edges[::2], edges[1::2]
        if len(starts) == 0:
            return 0
        gaps = np.where(starts == 0, 0, ROOM)
        enough = np.flatnonzero(ends - starts >= gaps + count + ROOM)
        if len(enough):
            return int(starts[enough[0]] + gaps[enough[0]])
        longest = int((ends - starts).argmax())
        start, end = int(starts[longest]), int(ends[longest])
        return max(start, min((start + end) // 2, end - count))

    def can_grow_in_place(self, blocks: list[int]) -> bool:
        """Whether these blocks lie side by side with a free one behind them."""
        behind = blocks[-1] + 1
        side_by_side = blocks == list(range(blocks[0], behind))
        return side_by_side and behind < self.num_blocks and not self._is_used[behind]

    @property
    def num_unused(self) -> int:
        """Blocks that nobody holds and nobody may find again."""
        return self.num_blocks - int(self._is_used.sum())

    def share(self, blocks: list[int]) -> None:
        """Counts one more holder for blocks that are held or cached."""
        for block in blocks:
            assert self._is_used[block], "a free block has nothing to share"
            self._num_held += int(self._counts[block] == 0)
            self._counts[block] += 1
            self.prefixes.use(block)

    def release(self, blocks: list[int]) -> None:
        """Counts one holder less for each block. Of a sequence's cached blocks the last are given out first."""
        for block in reversed(blocks):
            assert self._counts[block] > 0, f"block {block} is free already"
            self._counts[block] -= 1
            if self._counts[block] == 0:
                self._num_held -= 1
                self.prefixes.let_go(block)
                self._is_used[block] = block in self.prefixes

    def check_integrity(self, block_tables: Iterable[list[int]]) -> None:
        """Raises AssertionError unless the counts are what `block_tables` say."""
        held = Counter(block for table in block_tables for block in table)
        cached = set(self.prefixes.idle)
        for block in range(self.num_blocks):
            assert self._counts[block] == held[block], f"block {block}: count {self._counts[block]}, held {held[block]}"
            assert self._is_used[block] == (block in held or block in cached), f"block {block} is out of use or lost"
        assert self.num_free == self.num_blocks - len(held), f"{self.num_free} free, {len(held)} held"
        assert not cached & held.keys(), "a block is both held and waiting to be found"
        self.prefixes.check_integrity()
