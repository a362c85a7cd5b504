"""Who gives way when the cache is full."""

import pytest

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import open_sequence
from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.cache.state_pool import StatePool
from paceline.engine.scheduling.preemption import LONG_S, reserve
from paceline.engine.scheduling.sequence_state import SequenceState
from paceline.errors import ResourceExhausted
from paceline.sampling_params import SamplingParams

BLOCK_SIZE = 16


class Cache:
    """Sequences in a cache of eight blocks, oldest first."""

    def __init__(self, *num_blocks: int, num_slots: int = 0) -> None:
        self.pool = BlockPool(8, BLOCK_SIZE, lambda sources, destinations: None, states=StatePool(num_slots))
        self.states: list[SequenceState] = []
        for opened_order, count in enumerate(num_blocks):
            options = SequenceOptions(SamplingParams(temperature=0, seed=0), 1, ())
            state = SequenceState(open_sequence(options, self.pool), opened_order)
            if count:
                state.sequence.reserve(count * BLOCK_SIZE)
            state.sequence.tokens = [1] * (count * BLOCK_SIZE)
            self.states.append(state)

    def grow(self, number: int, num_blocks: int) -> None:
        reserve(self.pool, self.states[number], num_blocks * BLOCK_SIZE, self.states)

    @property
    def held(self) -> list[int]:
        return [len(state.sequence.blocks) for state in self.states]


def test_the_youngest_gives_way_first_and_no_more_than_needed() -> None:
    cache = Cache(2, 2, 2, 2)
    cache.grow(0, 4)
    assert cache.held == [4, 2, 2, 0]


def test_the_young_take_nothing_from_the_old() -> None:
    cache = Cache(3, 3, 2)
    with pytest.raises(ResourceExhausted, match="no room for 48 tokens: 0 of 8 blocks are free"):
        cache.grow(2, 3)
    assert cache.held == [3, 3, 2]
    cache.grow(1, 5)
    assert cache.held == [3, 5, 0]


def test_who_has_been_away_for_long_gives_way_to_anyone() -> None:
    cache = Cache(3, 3, 2)
    cache.states[0].idle_since_s -= 2 * LONG_S
    cache.grow(2, 4)
    assert cache.held == [0, 3, 4]


def test_without_need_nobody_gives_way() -> None:
    cache = Cache(2, 2)
    cache.grow(0, 6)
    assert cache.held == [6, 2]


def test_the_youngest_gives_way_for_its_state_too() -> None:
    cache = Cache(0, 1, 1, num_slots=2)
    cache.grow(0, 1)
    assert cache.held == [1, 1, 0]
    with pytest.raises(ResourceExhausted, match="6 of 8 blocks and none of 2 recurrent states are free"):
        cache.grow(2, 2)
