"""The prefix index: finds full blocks by the tokens from the context's start to the block's end (prefix caching).

A block's digest covers all these tokens, so equal digests mean equal keys and values.
"""

from collections import OrderedDict
from collections.abc import Collection


class PrefixIndex:
    """Maps the digest of a context to the block that holds the context's last tokens."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        # Indexed blocks without a holder, least recently used first.
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._digests

    @property
    def idle(self) -> Collection[int]:
        return self._idle

    def add(self, digest: bytes, block: int) -> None:
        """Indexes a held block, unless its content or the block is indexed already."""
        if digest not in self._blocks and block not in self._digests:
            self._blocks[digest] = block
            self._digests[block] = digest

    def find(self, digest: bytes) -> int | None:
        return self._blocks.get(digest)

    def use(self, block: int) -> None:
        self._idle.pop(block, None)

    def release(self, block: int) -> None:
        if block in self._digests:
            self._idle[block] = None

    def evict(self) -> int:
        """Removes the least recently used idle block from the index and returns it."""
        block, _ = self._idle.popitem(last=False)
        del self._blocks[self._digests.pop(block)]
        return block

    def check_integrity(self) -> None:
        assert {block: digest for digest, block in self._blocks.items()} == self._digests, "index and blocks disagree"
        assert self._idle.keys() <= self._digests.keys(), "a block without content waits to be found"
