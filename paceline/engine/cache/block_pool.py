"""KV cache blocks: who holds which.

    all blocks = free + cached + held

A block's count is the number of sequences that hold it. One that nobody holds is cached if a
context's beginning may find it again (see `prefix`), else free; cached blocks are given out when
no free ones are left. `check_integrity` compares the counts with the sequences' own block tables
and holds at every moment between two commands.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from paceline.engine.cache.prefix_index import PrefixIndex
from paceline.errors import ResourceExhausted


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
        # Holders of each block.
        self._counts = [0] * num_blocks
        # Neither held nor cached. What was let go last is given out first: little memory is ever touched.
        self._free = list(reversed(range(num_blocks)))

    @property
    def num_free(self) -> int:
        """Blocks that can be had: free or cached."""
        return len(self._free) + len(self.prefixes.idle)

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def count_freed(self, block_tables: Iterable[list[int]]) -> int:
        """How many blocks nobody would hold if all of `block_tables` let go."""
        let_go = Counter(block for table in block_tables for block in table)
        return sum(self._counts[block] == count for block, count in let_go.items())

    def is_private(self, block: int) -> bool:
        """Whether a held block may be written to: one holder, and nobody else can find it."""
        return self._counts[block] == 1 and block not in self.prefixes

    def allocate(self, count: int) -> list[int]:
        """`count` blocks, each held once; cached ones only in want of free ones.

        Raises ResourceExhausted, and takes nothing, if there are not as many.
        """
        if count > self.num_free:
            raise ResourceExhausted(f"{count} KV cache blocks wanted, {self.num_free} of {self.num_blocks} are free")
        blocks = [self._free.pop() if self._free else self.prefixes.evict() for _ in range(count)]
        for block in blocks:
            self._counts[block] = 1
        return blocks

    def share(self, blocks: list[int]) -> None:
        """Counts one more holder for blocks that are held or cached."""
        for block in blocks:
            assert self._counts[block] or block in self.prefixes, "a free block has nothing to share"
            self._counts[block] += 1
            self.prefixes.use(block)

    def release(self, blocks: list[int]) -> None:
        """Counts one holder less for each block. Of a sequence's cached blocks the last are given out first."""
        for block in reversed(blocks):
            assert self._counts[block] > 0, f"block {block} is free already"
            self._counts[block] -= 1
            if self._counts[block] == 0 and block in self.prefixes:
                self.prefixes.let_go(block)
            elif self._counts[block] == 0:
                self._free.append(block)

    def check_integrity(self, block_tables: Iterable[list[int]]) -> None:
        """Raises AssertionError unless the counts are what `block_tables` say."""
        held = Counter(block for table in block_tables for block in table)
        for block in range(self.num_blocks):
            assert self._counts[block] == held[block], f"block {block}: count {self._counts[block]}, held {held[block]}"
        places = Counter([*held, *self._free, *self.prefixes.idle])
        assert places == Counter(range(self.num_blocks)), "a block is lost, or in two of free, cached and held"
        self.prefixes.check_integrity()
