"""What the coordinator believes a server has cached: digests of whole blocks, as the server's prefix index has them."""

from collections import OrderedDict
from collections.abc import Sequence

from paceline.digests import extend_digest, first_digest

# The least recently used are forgotten. Takes 16 MB or so.
MAX_BLOCKS = 100_000


class BlockDigests:
    """The digests of a context that grows: of the tokens up to each whole block's end."""

    def __init__(self, tokens: Sequence[int], salt: str) -> None:
        self._tokens, self._salt = tokens, salt
        self._digests: list[bytes] = []

    def of_now(self, block_size: int) -> Sequence[bytes]:
        """Computes those of new blocks."""
        digests = self._digests
        digest = digests[-1] if digests else first_digest(self._salt)
        for begin in range(len(digests) * block_size, len(self._tokens) - block_size + 1, block_size):
            digest = extend_digest(digest, self._tokens[begin : begin + block_size])
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
