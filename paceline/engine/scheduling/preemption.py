"""Preemption: which sequence gives up its blocks, and its recurrent state, for another.

When the cache is full, or no state is free, the youngest idle sequences of all sessions lose theirs. A sequence is
preempted only for an older one, so the oldest always finish; otherwise sequences would preempt and replay one another
forever. One that has been idle for long, and may never come back, can be preempted for any other.

An preempted sequence has length 0. Its next command fails with the cache's length, and its coordinator sends the whole
context again.
"""

import time
from collections.abc import Iterable

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.scheduling.sequence_state import SequenceState
from paceline.errors import ResourceExhausted

# A sequence that is idle for longer than this may be preempted for a younger one.
LONG_S = 10.0
# One that found no room comes back within this time, and then finds younger ones idle.
RETRY_S = 2.0


class Refusal:
    """The last sequence that found no room: younger ones do not go on by themselves, for running they can't be preempted."""

    def __init__(self) -> None:
        self._order, self._since_s = 0, -RETRY_S

    def note(self, state: SequenceState) -> None:
        self._order, self._since_s = state.opened_order, time.perf_counter()

    def concerns(self, state: SequenceState) -> bool:
        return state.opened_order > self._order and time.perf_counter() - self._since_s < RETRY_S


def reserve(pool: BlockPool, state: SequenceState, length: int, everyone: Iterable[SequenceState]) -> int:
    """Reserves blocks for `length` tokens, and a state. Returns how many sequences of `everyone` it preempted.

    Raises ResourceExhausted, and preempts none, if preemption can't free enough.
    """
    victims = _victims(pool, state, length, everyone)
    for victim in victims:
        victim.sequence.truncate(0)
    state.sequence.reserve(length)
    return len(victims)


def _victims(
    pool: BlockPool, state: SequenceState, length: int, everyone: Iterable[SequenceState]
) -> list[SequenceState]:
    missing = state.sequence.missing_blocks(length) - pool.num_free
    lacks_state = state.sequence.lacks_state
    if missing <= 0 and not lacks_state:
        return []
    now_s = time.perf_counter()
    idle = [
        other
        for other in everyone
        if other.job is None
        and other.sequence.blocks
        and (other.opened_order > state.opened_order or (other is not state and now_s - other.idle_since_s > LONG_S))
    ]
    idle.sort(key=lambda other: other.opened_order, reverse=True)
    victims: list[SequenceState] = []
    # A sequence with blocks has a state.
    while pool.count_freed(victim.sequence.blocks for victim in victims) < missing or (lacks_state and not victims):
        if not idle:
            raise ResourceExhausted(
                f"the KV cache has no room for {length} tokens: {pool.num_free} of {pool.num_blocks} blocks "
                + (f"and none of {pool.states.num_slots} recurrent states " if lacks_state else "")
                + "are free and the rest is in use"
            )
        victims.append(idle.pop(0))
    return victims
