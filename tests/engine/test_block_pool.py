"""Blocks are neither lost nor held twice, whatever sequences do with them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from paceline.engine.block_pool import BlockPool
from paceline.engine.sequence import Sequence, SequenceOptions
from paceline.errors import OutOfRange, ResourceExhausted
from paceline.sampling import SamplingParams

NUM_BLOCKS, BLOCK_SIZE = 12, 4
OPTIONS = SequenceOptions(SamplingParams(seed=1), num_prompt_tokens=1, eos_token_ids=())


def snapshot(pool: BlockPool, tables: list[list[int]]) -> tuple[int, list[list[int]]]:
    return pool.num_free, [list(table) for table in tables]


class PoolMachine(RuleBasedStateMachine):
    """Sequences that grow and shrink, and tables that share their blocks, beside a plain account of both."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        self.sequences: list[Sequence] = []
        self.borrowed: list[list[int]] = []

    def tables(self) -> list[list[int]]:
        return [sequence.blocks for sequence in self.sequences] + self.borrowed

    @rule()
    def open(self) -> None:
        self.sequences.append(Sequence(OPTIONS, self.pool))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), more=st.integers(0, 30), fed=st.floats(0, 1))
    def reserve_and_feed(self, data: st.DataObject, more: int, fed: float) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        length = sequence.length + more
        needed = -(-length // BLOCK_SIZE) - len(sequence.blocks)
        before = snapshot(self.pool, self.tables())
        if needed > self.pool.num_free:
            with pytest.raises(ResourceExhausted):
                sequence.reserve(length)
            assert snapshot(self.pool, self.tables()) == before
            return
        sequence.reserve(length)
        assert len(sequence.blocks) * BLOCK_SIZE >= length
        assert self.pool.num_free == before[0] - max(0, needed)
        # A job may be dropped halfway: fewer tokens are fed than were reserved.
        sequence.tokens += [0] * int(more * fed)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), length=st.integers(0, 60))
    def truncate(self, data: st.DataObject, length: int) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        before = snapshot(self.pool, self.tables())
        if length > sequence.length:
            with pytest.raises(OutOfRange, match=rf"{length}.*{sequence.length}"):
                sequence.truncate(length)
            assert snapshot(self.pool, self.tables()) == before
            return
        kept = sequence.blocks[: -(-length // BLOCK_SIZE)]
        sequence.truncate(length)
        assert sequence.length == length
        assert sequence.blocks == kept

    @precondition(lambda self: any(sequence.blocks for sequence in self.sequences))
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        owner = data.draw(st.sampled_from([sequence for sequence in self.sequences if sequence.blocks]))
        count = data.draw(st.integers(1, len(owner.blocks)))
        free = self.pool.num_free
        self.pool.share(owner.blocks[:count])
        self.borrowed.append(owner.blocks[:count])
        assert self.pool.num_free == free

    @precondition(lambda self: self.borrowed)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        index = data.draw(st.integers(0, len(self.borrowed) - 1))
        self.pool.release(self.borrowed.pop(index))

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        sequence.truncate(0)
        self.sequences.remove(sequence)

    @invariant()
    def nothing_is_lost_or_held_twice(self) -> None:
        self.pool.check_integrity(self.tables())
        assert self.pool.num_free == NUM_BLOCKS - len({block for table in self.tables() for block in table})
        own = [block for sequence in self.sequences for block in sequence.blocks]
        assert len(own) == len(set(own)), "two sequences write into one block"

    def teardown(self) -> None:
        while self.sequences:
            self.sequences.pop().truncate(0)
        while self.borrowed:
            self.pool.release(self.borrowed.pop())
        assert self.pool.num_free == NUM_BLOCKS


def test_no_history_of_sequences_loses_a_block_or_hands_one_out_twice() -> None:
    profile = settings(max_examples=100, stateful_step_count=40, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(PoolMachine, settings=profile)


@given(taken=st.lists(st.integers(0, 31), unique=True), count=st.integers(0, 32), after=st.none() | st.integers(0, 31))
@settings(deadline=None, derandomize=True, database=None)
def test_allocated_blocks_were_free_and_follow_their_predecessor_where_they_can(
    taken: list[int], count: int, after: int | None
) -> None:
    pool = BlockPool(32, BLOCK_SIZE)
    pool.release([block for block in pool.allocate(32) if block not in taken])
    free = set(range(32)) - set(taken)
    if count > len(free):
        with pytest.raises(ResourceExhausted, match=rf"{count} .* wanted, {len(free)} of 32"):
            pool.allocate(count, after)
        assert pool.num_free == len(free)
        return
    blocks = pool.allocate(count, after)
    assert len(set(blocks)) == count
    assert set(blocks) <= free
    start = 0 if after is None else after + 1
    behind = list(range(start, start + count))
    assert blocks == (behind if set(behind) <= free else sorted(free)[:count])


def test_truncate_inside_a_block_keeps_what_is_before_it() -> None:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    sequence = Sequence(OPTIONS, pool)
    sequence.reserve(11)
    sequence.tokens += range(11)
    first, second, _ = sequence.blocks
    sequence.truncate(5)
    assert sequence.tokens == [0, 1, 2, 3, 4]
    assert sequence.blocks == [first, second]
    sequence.truncate(4)
    assert sequence.blocks == [first]


def test_a_block_with_two_holders_is_free_only_after_both_let_go() -> None:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    blocks = pool.allocate(3)
    pool.share(blocks[:2])
    pool.release(blocks)
    assert pool.num_free == NUM_BLOCKS - 2
    pool.release(blocks[:2])
    assert pool.num_free == NUM_BLOCKS


@pytest.fixture
def held() -> tuple[BlockPool, list[list[int]]]:
    """A pool with two tables that agree with it."""
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
    tables = [pool.allocate(3), pool.allocate(2)]
    pool.check_integrity(tables)
    return pool, tables


def test_the_check_finds_a_leaked_block(held: tuple[BlockPool, list[list[int]]]) -> None:
    pool, tables = held
    lost = tables[0].pop()
    with pytest.raises(AssertionError, match=f"block {lost}: count 1, held 0"):
        pool.check_integrity(tables)


def test_the_check_finds_a_block_counted_twice(held: tuple[BlockPool, list[list[int]]]) -> None:
    pool, tables = held
    pool.share(tables[1][:1])
    with pytest.raises(AssertionError, match=f"block {tables[1][0]}: count 2, held 1"):
        pool.check_integrity(tables)


def test_the_check_finds_a_block_that_two_tables_hold_and_the_pool_counts_once(
    held: tuple[BlockPool, list[list[int]]],
) -> None:
    pool, tables = held
    with pytest.raises(AssertionError, match=f"block {tables[0][0]}: count 1, held 2"):
        pool.check_integrity([tables[0], tables[0][:1], tables[1]])


def test_a_free_block_is_neither_shared_nor_released(held: tuple[BlockPool, list[list[int]]]) -> None:
    pool, tables = held
    for misuse in (pool.share, pool.release):
        with pytest.raises(AssertionError, match="free"):
            misuse([NUM_BLOCKS - 1])
    pool.check_integrity(tables)
