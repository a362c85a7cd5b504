"""Full blocks, found again by the tokens up to their end (prefix caching).

A block's digest covers all tokens from the context's start to the block's end, so equal
digests mean equal keys and values: every row's bits depend on the tokens before it alone.
"""

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Collection

NO_TOKENS = b""


def extend_digest(before: bytes, tokens: list[int]) -> bytes:
    """Digest of a context that goes on with `tokens`, from the digest of what is before them."""
    return hashlib.blake2b(before + array("Q", tokens).tobytes(), digest_size=16).digest()


class PrefixIndex:
    """Which block holds which context's end; and of the blocks nobody holds, which was used least lately."""

    def __init__(self) -> None:
        self._blocks: dict[bytes, int] = {}
        self._digests: dict[int, bytes] = {}
        # Indexed blocks that nobody holds, least recently used first.
        self._idle: OrderedDict[int, None] = OrderedDict()

    def __contains__(self, block: int) -> bool:
        return block in self._digests

    @property
    def idle(self) -> Collection[int]:
        """Indexed blocks that nobody holds."""
        return self._idle

    def add(self, digest: bytes, block: int) -> None:
        """Indexes a held block. Another block with the same content stays the one that is found."""
        if digest not in self._blocks and block not in self._digests:
            self._blocks[digest] = block
            self._digests[block] = digest

    def find(self, digest: bytes) -> int | None:
        """The block with this content, if there is one."""
        return self._blocks.get(digest)

    def use(self, block: int) -> None:
        """Somebody holds the block."""
        self._idle.pop(block, None)

    def let_go(self, block: int) -> None:
        """Nobody holds the block any more."""
        if block in self._digests:
            self._idle[block] = None

    def evict(self) -> int:
        """Forgets the least recently used of the blocks nobody holds, and returns it."""
        block, _ = self._idle.popitem(last=False)
        del self._blocks[self._digests.pop(block)]
        return block

    def check_integrity(self) -> None:
        """Raises AssertionError if its two sides disagree."""
        assert {block: digest for digest, block in self._blocks.items()} == self._digests, "index and blocks disagree"
        assert self._idle.keys() <= self._digests.keys(), "a block without content waits to be found"
