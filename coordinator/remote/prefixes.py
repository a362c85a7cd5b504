"""What a server is believed to have cached: digests of whole blocks (`paceline.digests`), as the server indexes them."""

from collections import OrderedDict
from collections.abc import Sequence

# The least recently used are forgotten. So many take 15 MB.
MAX_BLOCKS = 100_000


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
