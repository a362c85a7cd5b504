"""Who gives way when the cache is full: idle sequences, across all sessions, the youngest first.

Only to one that is older: then the oldest always come to their end, and those the cache has no room for wait. If
the young took room from the old as well, all would replay each other's contexts for ever. Who has been idle
for long gives way to anyone: it may never come back.

An evicted sequence has length 0; its owner learns so from its next command's error, and replays.
"""

import time
from collections.abc import Iterable

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.scheduling.session import SequenceState
from paceline.errors import ResourceExhausted

# Idle for so long, a sequence gives way to younger ones too.
LONG_S = 10.0


def reserve(pool: BlockPool, state: SequenceState, length: int, everyone: Iterable[SequenceState]) -> None:
    """Reserves blocks for `length` tokens of `state`, evicting of `everyone` whom it must.

    Raises ResourceExhausted, and evicts nobody, where even that is not enough.
    """
    for victim in _victims(pool, state, length, everyone):
        victim.sequence.truncate(0)
    state.sequence.reserve(length)


def _victims(
    pool: BlockPool, state: SequenceState, length: int, everyone: Iterable[SequenceState]
) -> list[SequenceState]:
    """The youngest idle ones whose blocks, together, are room enough."""
    missing = state.sequence.missing_blocks(length) - pool.num_free
    if missing <= 0:
        return []
    now_s = time.perf_counter()
    idle = [
        other
        for other in everyone
        if other.job is None
        and other.sequence.blocks
        and (
            other.opened_order > state.opened_order
            or (other is not state and other.return_time.is_longer(LONG_S, now_s))
        )
    ]
    idle.sort(key=lambda other: other.opened_order, reverse=True)
    victims: list[SequenceState] = []
    while pool.count_freed(victim.sequence.blocks for victim in victims) < missing:
        if not idle:
            raise ResourceExhausted(
                f"the KV cache has no room for {length} tokens: "
                f"{pool.num_free} of {pool.num_blocks} blocks are free and the rest is in use"
            )
        victims.append(idle.pop(0))
    return victims
