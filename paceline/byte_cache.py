from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# What an entry takes besides its key and value.
ENTRY_BYTES = 256


class ByteCache(Generic[K, V]):
    """Keeps the most recently used values whose sizes together are at most `max_bytes`. Not thread-safe."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.num_bytes = 0
        # Value and size by key, least recently used first.
        self._kept: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Returns the value, which becomes the most recently used; None if it is not kept."""
        if key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key][0]

    def put(self, key: K, value: V, num_bytes: int) -> None:
        """Keeps a value of this size, key included, in place of the least recently used; none larger than `max_bytes`."""
        self.drop(key)
        if num_bytes > self.max_bytes:
            return
        self._kept[key] = value, num_bytes
        self.num_bytes += num_bytes
        while self.num_bytes > self.max_bytes:
            self.drop(next(iter(self._kept)))

    def drop(self, key: K) -> None:
        """Forgets a value, if it is kept."""
        if key in self._kept:
            self.num_bytes -= self._kept.pop(key)[1]
