"""The block pool: tracks which KV cache blocks are free, cached or held.

    all blocks = free + cached + held

A block's count is the number of sequences that hold it. A block with count 0 is cached if the prefix index still has it,
otherwise free. Cached blocks are reused when no free ones are left.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from paceline.engine.cache.prefix_index import PrefixIndex
from paceline.engine.cache.state_pool import StatePool
from paceline.errors import ResourceExhausted


class BlockPool:
    """Hands out block numbers 0 … num_blocks - 1."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        copy_blocks: Callable[[list[int], list[int]], None],
        caches_prefixes: bool = True,
        states: StatePool | None = None,
    ) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.copy_blocks = copy_blocks
        self.caches_prefixes = caches_prefixes
        self.prefixes = PrefixIndex()
        self.states = states or StatePool()
        # Number of sequences that hold each block.
        self._counts = [0] * num_blocks
        # Free blocks. The last one released is allocated first, so that a light load touches little memory.
        self._free = list(reversed(range(num_blocks)))

    @property
    def num_free(self) -> int:
        """Number of blocks that `allocate` can return: free or cached."""
        return len(self._free) + len(self.prefixes.idle)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def count_freed(self, block_tables: Iterable[list[int]]) -> int:
        """Returns how many blocks would be unreferenced if the holders of all `block_tables` released them."""
        released = Counter(block for table in block_tables for block in table)
        return sum(self._counts[block] == count for block, count in released.items())

    def is_private(self, block: int) -> bool:
        """Whether the block has one holder and is not indexed, so that the holder may write to it."""
        return self._counts[block] == 1 and block not in self.prefixes

    def allocate(self, count: int) -> list[int]:
        """Returns `count` blocks, evicting cached ones if necessary. Raises ResourceExhausted, and takes nothing."""
        if count > self.num_free:
            raise ResourceExhausted(f"{count} KV cache blocks wanted, {self.num_free} of {self.num_blocks} are free")
        blocks = [self._free.pop() if self._free else self.prefixes.evict() for _ in range(count)]
        for block in blocks:
            self._counts[block] = 1
        return blocks

    def ref(self, blocks: list[int]) -> None:
        for block in blocks:
            assert self._counts[block] or block in self.prefixes, "a free block has no content to share"
            self._counts[block] += 1
            self.prefixes.use(block)

    def release(self, blocks: list[int]) -> None:
        """Removes one holder from each of a sequence's blocks. The last is evicted first: fewer contexts share it."""
        for block in reversed(blocks):
            assert self._counts[block] > 0, f"block {block} is free already"
            self._counts[block] -= 1
            if self._counts[block] == 0 and block in self.prefixes:
                self.prefixes.release(block)
            elif self._counts[block] == 0:
                self._free.append(block)

    def check_integrity(self, block_tables: Iterable[list[int]]) -> None:
        """Raises AssertionError if the counts and `block_tables` disagree."""
        held = Counter(block for table in block_tables for block in table)
        for block in range(self.num_blocks):
            assert self._counts[block] == held[block], f"block {block}: count {self._counts[block]}, held {held[block]}"
        found = Counter([*held, *self._free, *self.prefixes.idle])
        assert found == Counter(range(self.num_blocks)), "a block is lost, or in two of free, cached and held"
        self.prefixes.check_integrity()
