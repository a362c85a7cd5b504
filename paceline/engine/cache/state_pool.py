"""The state pool: slots for the states of recurrent layers, which a sequence has once, not per token.

    all slots = free + held + snapshots

A sequence holds one slot. A snapshot is a copy of a state, found by the digest of the tokens up to it (see `prefix_index`).
The least recently used ones give way to sequences and to newer snapshots.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable
from typing import NamedTuple

from paceline.errors import ResourceExhausted


class StateSpan(NamedTuple):
    """What a step does with a sequence's state."""

    slot: int
    # Tokens in the slot's state before the step, and after it.
    base: int
    new_base: int
    # Tokens in the snapshot that the step takes, and its slot; 0 and the sequence's own slot if it takes none.
    snapshot: int
    snapshot_slot: int


# Snapshots are taken at multiples of this, at most one in a step.
SNAPSHOT_TOKENS = 1024


def num_slots_for(num_tokens: int) -> int:
    """Returns how many slots suit a cache of `num_tokens`: a snapshot of each interval, and one to restore it to."""
    return 1 + -(-num_tokens // SNAPSHOT_TOKENS)


class StatePool:
    """Hands out slots 0 … num_slots - 1. Models without recurrent layers have none."""

    def __init__(self, num_slots: int = 0, copy: Callable[[int, int], None] = lambda source, destination: None) -> None:
        """`copy(source, destination)` copies a slot's content."""
        self.num_slots = num_slots
        self.copy = copy
        self._free = list(reversed(range(num_slots)))
        # Least recently used first.
        self._snapshots: OrderedDict[bytes, int] = OrderedDict()

    @property
    def num_free(self) -> int:
        """Number of slots that `allocate` can return: free ones and snapshots."""
        return len(self._free) + len(self._snapshots)

    def require_free(self) -> None:
        """Raises ResourceExhausted."""
        if not self.num_free:
            raise ResourceExhausted(f"all {self.num_slots} recurrent states of the KV cache are in use")

    def allocate(self) -> int:
        """Returns a slot, dropping a snapshot if necessary. Raises ResourceExhausted."""
        self.require_free()
        return self._free.pop() if self._free else self._snapshots.popitem(last=False)[1]

    def release(self, slot: int) -> None:
        self._free.append(slot)

    def add(self, digest: bytes, slot: int) -> None:
        """Makes a held slot the snapshot of a context, or frees it if there is one already."""
        if digest in self._snapshots:
            self.release(slot)
        else:
            self._snapshots[digest] = slot
        self._snapshots.move_to_end(digest)

    def restore(self, digest: bytes) -> int | None:
        """Returns a slot with the state of a context: the snapshot's own if no other is available. None without one."""
        if digest not in self._snapshots:
            return None
        if self.num_free == 1:
            return self._snapshots.pop(digest)
        self._snapshots.move_to_end(digest)
        slot = self.allocate()
        self.copy(self._snapshots[digest], slot)
        return slot

    def check_integrity(self, held: Iterable[int]) -> None:
        """Raises AssertionError if a slot is lost, or held twice."""
        found = Counter([*held, *self._free, *self._snapshots.values()])
        assert found == Counter(range(self.num_slots)), "a state is lost, or in two of free, held and snapshots"
