"""Blocks are neither lost nor held twice, whatever sequences do with them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.errors import OutOfRange, ResourceExhausted
from paceline.sampling_params import SamplingParams

NUM_BLOCKS, BLOCK_SIZE = 12, 4
OPTIONS = SequenceOptions(SamplingParams(seed=1), num_prompt_tokens=1, eos_token_ids=())

# Often the same beginning, often another end.
TOKENS = st.builds(lambda token, count: [token] * count, st.integers(0, 1), st.integers(0, 20))


def make_pool(num_blocks: int = NUM_BLOCKS) -> BlockPool:
    return BlockPool(num_blocks, BLOCK_SIZE, lambda sources, destinations: None)


def snapshot(pool: BlockPool, tables: list[list[int]]) -> tuple[int, list[list[int]]]:
    return pool.num_free, [list(table) for table in tables]


class PoolMachine(RuleBasedStateMachine):
    """Sequences that grow, shrink and find one another's beginnings, beside what their blocks really hold."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, self.copy_blocks)
        self.sequences: list[Sequence] = []
        # What was last written to each place of each block.
        self.memory = [[-1] * BLOCK_SIZE for _ in range(NUM_BLOCKS)]

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        for source, destination in zip(sources, destinations, strict=True):
            self.memory[destination] = list(self.memory[source])

    def tables(self) -> list[list[int]]:
        return [sequence.blocks for sequence in self.sequences]

    def write(self, sequence: Sequence, tokens: list[int]) -> None:
        for position, token in enumerate(tokens, start=sequence.length):
            self.memory[sequence.blocks[position // BLOCK_SIZE]][position % BLOCK_SIZE] = token
        sequence.tokens += tokens

    @precondition(lambda self: len(self.sequences) < 4)
    @rule()
    def open(self) -> None:
        self.sequences.append(Sequence(OPTIONS, self.pool))

    @precondition(lambda self: any(not sequence.blocks for sequence in self.sequences))
    @rule(data=st.data(), tokens=TOKENS)
    def match_prefix(self, data: st.DataObject, tokens: list[int]) -> None:
        sequence = data.draw(st.sampled_from([each for each in self.sequences if not each.blocks]))
        num_cached = sequence.match_prefix(tokens)
        assert num_cached % BLOCK_SIZE == 0
        assert sequence.tokens == tokens[:num_cached]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), tokens=TOKENS, fed=st.sampled_from([1.0, 1.0, 0.5]))
    def reserve_and_feed(self, data: st.DataObject, tokens: list[int], fed: float) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        length = sequence.length + len(tokens)
        needed = sequence.missing_blocks(length)
        before = snapshot(self.pool, self.tables())
        if needed > self.pool.num_free:
            with pytest.raises(ResourceExhausted):
                sequence.reserve(length)
            assert snapshot(self.pool, self.tables()) == before
            return
        sequence.reserve(length)
        assert len(sequence.blocks) * BLOCK_SIZE >= length
        # A job may be dropped halfway: fewer tokens are fed than were reserved.
        self.write(sequence, tokens[: int(len(tokens) * fed)])

    @precondition(lambda self: self.sequences and len(self.sequences) < 4)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.sequences))
        length = data.draw(st.integers(0, parent.length + 1))
        before = snapshot(self.pool, self.tables())
        forked = Sequence(OPTIONS, self.pool)
        if length > parent.length:
            with pytest.raises(OutOfRange, match=rf"length is {length}, .* {parent.length} tokens"):
                forked.fork(parent, length)
        else:
            forked.fork(parent, length)
            assert forked.tokens == parent.tokens[:length]
            self.sequences.append(forked)
        # It shares all of its blocks.
        assert snapshot(self.pool, self.tables())[0] == before[0]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        sequence.commit(sequence.length)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        length = data.draw(st.integers(0, sequence.length + 2))
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

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        sequence.truncate(0)
        self.sequences.remove(sequence)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check_integrity(self.tables())
        assert self.pool.num_free == NUM_BLOCKS - len({block for table in self.tables() for block in table})

    @invariant()
    def blocks_hold_what_their_sequences_think(self) -> None:
        for sequence in self.sequences:
            held = [token for block in sequence.blocks for token in self.memory[block]]
            assert held[: sequence.length] == sequence.tokens

    def teardown(self) -> None:
        while self.sequences:
            self.sequences.pop().truncate(0)
        assert self.pool.num_free == NUM_BLOCKS


def test_no_history_of_sequences_loses_a_block_or_hands_one_out_twice() -> None:
    profile = settings(max_examples=100, stateful_step_count=50, deadline=None, derandomize=True, database=None)
    run_state_machine_as_test(PoolMachine, settings=profile)


@given(taken=st.lists(st.integers(0, 31), unique=True), count=st.integers(0, 32))
@settings(deadline=None, derandomize=True, database=None)
def test_allocated_blocks_were_free(taken: list[int], count: int) -> None:
    pool = make_pool(32)
    pool.release([block for block in pool.allocate(32) if block not in taken])
    free = set(range(32)) - set(taken)
    if count > len(free):
        with pytest.raises(ResourceExhausted, match=rf"{count} .* wanted, {len(free)} of 32"):
            pool.allocate(count)
        assert pool.num_free == len(free)
        return
    blocks = pool.allocate(count)
    assert len(set(blocks)) == count
    assert set(blocks) <= free


def test_blocks_that_were_let_go_are_given_out_before_new_ones() -> None:
    """Untouched ones are not resident yet."""
    pool = make_pool(64)
    first = pool.allocate(3)
    pool.release(first)
    assert pool.allocate(4) == [*first, 3]


def test_truncate_inside_a_block_keeps_what_is_before_it() -> None:
    pool = make_pool()
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
    pool = make_pool()
    blocks = pool.allocate(3)
    pool.ref(blocks[:2])
    pool.release(blocks)
    assert pool.num_free == NUM_BLOCKS - 2
    pool.release(blocks[:2])
    assert pool.num_free == NUM_BLOCKS


def fed(pool: BlockPool, tokens: list[int]) -> Sequence:
    sequence = Sequence(OPTIONS, pool)
    sequence.reserve(len(tokens))
    sequence.tokens += tokens
    return sequence


def test_a_released_beginning_is_found_again_up_to_its_last_full_block() -> None:
    pool = make_pool()
    first = fed(pool, list(range(11)))
    first.commit(11)
    blocks = list(first.blocks)
    first.truncate(0)
    assert pool.num_free == NUM_BLOCKS
    second = Sequence(OPTIONS, pool)
    assert second.match_prefix([*range(9), 99]) == 8
    assert second.blocks == blocks[:2]
    assert pool.num_free == NUM_BLOCKS - 2


def test_the_same_tokens_behind_others_are_not_the_same_beginning() -> None:
    pool = make_pool()
    fed(pool, [1, 2, 3, 4, 5, 6, 7, 8]).commit(8)
    assert Sequence(OPTIONS, pool).match_prefix([9, 9, 9, 9, 5, 6, 7, 8]) == 0
    assert Sequence(OPTIONS, pool).match_prefix([5, 6, 7, 8]) == 0


def test_a_beginning_is_read_by_both_while_another_grows_from_it() -> None:
    pool = make_pool()
    first = fed(pool, list(range(10)))
    first.commit(10)
    second = Sequence(OPTIONS, pool)
    assert second.match_prefix([*range(8), 99]) == 8
    assert second.blocks == first.blocks[:2]
    first.truncate(0)
    assert pool.num_free == NUM_BLOCKS - 2


def test_drafts_are_not_found() -> None:
    pool = make_pool()
    fed(pool, list(range(8))).commit(7)
    assert Sequence(OPTIONS, pool).match_prefix(list(range(8))) == 4


def test_the_least_recently_used_beginning_is_given_up_first_and_its_end_before_its_start() -> None:
    pool = make_pool(4)
    for tokens in ([1] * 8, [2] * 8):
        sequence = fed(pool, tokens)
        sequence.commit(8)
        sequence.truncate(0)
    pool.allocate(1)
    assert Sequence(OPTIONS, pool).match_prefix([2] * 8) == 8
    assert Sequence(OPTIONS, pool).match_prefix([1] * 8) == 4


def test_writing_into_a_block_that_others_read_copies_it_first() -> None:
    copies: list[tuple[list[int], list[int]]] = []
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, lambda sources, destinations: copies.append((sources, destinations)))
    first = fed(pool, list(range(8)))
    first.commit(8)
    second = Sequence(OPTIONS, pool)
    second.match_prefix(list(range(8)))
    second.truncate(6)
    second.reserve(7)
    assert copies == [([first.blocks[1]], [second.blocks[1]])]
    assert first.blocks[1] != second.blocks[1]


def test_an_end_that_was_replaced_is_found_by_its_new_tokens() -> None:
    pool = make_pool()
    sequence = fed(pool, list(range(8)))
    sequence.commit(8)
    sequence.truncate(4)
    sequence.reserve(8)
    sequence.tokens += [9] * 4
    sequence.commit(8)
    assert Sequence(OPTIONS, pool).match_prefix([0, 1, 2, 3, 9, 9, 9, 9]) == 8
    # And by its former ones, which were in a block of their own before it was written to.
    assert Sequence(OPTIONS, pool).match_prefix(list(range(8))) == 8


def test_without_prefix_caching_nothing_is_kept() -> None:
    pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, lambda sources, destinations: None, caches_prefixes=False)
    fed(pool, list(range(8))).commit(8)
    assert Sequence(OPTIONS, pool).match_prefix(list(range(8))) == 0


def test_letting_go_of_a_shared_block_frees_it_only_with_its_last_holder() -> None:
    pool = make_pool()
    first, second = pool.allocate(3), pool.allocate(2)
    pool.ref(first[:2])
    borrowed = first[:2]
    assert pool.count_freed([first]) == 1
    assert pool.count_freed([first, second]) == 3
    assert pool.count_freed([first, borrowed, second]) == 5


@pytest.fixture
def held() -> tuple[BlockPool, list[list[int]]]:
    """A pool with two tables that agree with it."""
    pool = make_pool()
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
    pool.ref(tables[1][:1])
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
    for misuse in (pool.ref, pool.release):
        with pytest.raises(AssertionError, match="free"):
            misuse([NUM_BLOCKS - 1])
    pool.check_integrity(tables)
