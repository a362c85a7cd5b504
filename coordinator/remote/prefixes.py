"""What the coordinator believes a server has cached: digests of whole blocks, as the server's prefix index has them."""

from collections import OrderedDict
from collections.abc import Sequence

from paceline.digests import extend_digest, first_digest

# The least recently used are forgotten. Takes 16 MB or so.
MAX_BLOCKS = 100_000


def block_digests(tokens: Sequence[int], salt: str, block_size: int) -> list[bytes]:
    """Returns the digest of the tokens up to each whole block's end."""
    digests, digest = [], first_digest(salt)
    for begin in range(0, len(tokens) - block_size + 1, block_size):
        digest = extend_digest(digest, tokens[begin : begin + block_size])
        digests.append(digest)
    return digests


class KnownPrefixes:
    def __init__(self) -> None:
        self._digests: OrderedDict[bytes, None] = OrderedDict()

    def num_blocks(self, digests: Sequence[bytes]) -> int:
        """Returns how many of a context's first blocks are known."""
        return next((at for at, digest in enumerate(digests) if digest not in self._digests), len(digests))

    def add(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            self._digests[digest] = None
            self._digests.move_to_end(digest)
        while len(self._digests) > MAX_BLOCKS:
            self._digests.popitem(last=False)

    def drop(self, digests: Sequence[bytes]) -> None:
        for digest in digests:
            self._digests.pop(digest, None)
