"""A recurrent state is that of its sequence's tokens, whatever sequences do: nothing of dropped tokens stays in it."""

import random

import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import LOG_TOKENS, open_sequence
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.cache.state_pool import SNAPSHOT_TOKENS, StatePool
from paceline.errors import ResourceExhausted
from paceline.sampling_params import SamplingParams

NUM_BLOCKS, BLOCK_SIZE, NUM_SLOTS = 600, 16, 5
# Often the same beginning, of several blocks, intervals and logs.
TOKENS = st.builds(
    lambda token, count: [token] * count, st.integers(0, 1), st.one_of(st.integers(1, 40), st.integers(1, 2500))
)


class Slots:
    """Slots whose states are the tokens that made them. A log has at most LOG_TOKENS."""

    def __init__(self, num_slots: int) -> None:
        self.states: list[list[int]] = [[] for _ in range(num_slots)]
        self.logs: list[list[int]] = [[] for _ in range(num_slots)]
        self.pool = StatePool(num_slots, self.copy)

    def copy(self, source: int, destination: int) -> None:
        self.states[destination], self.logs[destination] = list(self.states[source]), list(self.logs[source])

    def feed(self, sequence: Sequence, tokens: list[int], fails: bool = False) -> None:
        """Runs a step, as `engine.cpu.kernels.recurrent` does."""
        span, length = sequence.plan_state(len(tokens)), sequence.length
        assert span is not None
        base = self.states[span.slot] if span.base else []
        assert len(base) == span.base
        log = self.logs[span.slot][: length - span.base]
        assert base + log == sequence.tokens
        fed = base + log + tokens
        if span.snapshot:
            assert span.base < span.snapshot <= len(fed)
            self.states[span.snapshot_slot] = fed[: span.snapshot]
        assert span.base <= span.new_base <= len(fed) <= span.new_base + LOG_TOKENS
        self.states[span.slot], self.logs[span.slot] = fed[: span.new_base], fed[span.new_base :]
        if not fails:
            sequence.append(tokens)


def make(num_slots: int = NUM_SLOTS, num_blocks: int = NUM_BLOCKS) -> tuple[BlockPool, Slots]:
    slots = Slots(num_slots)
    return BlockPool(num_blocks, BLOCK_SIZE, lambda sources, destinations: None, states=slots.pool), slots


def options(num_prompt_tokens: int) -> SequenceOptions:
    return SequenceOptions(SamplingParams(seed=1), num_prompt_tokens, eos_token_ids=())


class StateMachine(RuleBasedStateMachine):
    """Sequences that are fed, shortened, forked and found again. `Slots.feed` compares states with tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.pool, self.slots = make()
        self.sequences: list[Sequence] = []

    @precondition(lambda self: len(self.sequences) < NUM_SLOTS + 1)
    @rule(tokens=TOKENS, tail=st.integers(0, 40))
    def open_and_match(self, tokens: list[int], tail: int) -> None:
        sequence = open_sequence(options(len(tokens)), self.pool)
        num_cached = sequence.match_prefix(tokens)
        assert sequence.tokens == tokens[:num_cached]
        self.sequences.append(sequence)
        self.feed(sequence, tokens[num_cached:] + [2] * tail)

    @precondition(lambda self: self.sequences)
    @rule(
        data=st.data(), tokens=TOKENS, fails=st.sampled_from([False] * 4 + [True]), chunk=st.sampled_from([1, 7, 512])
    )
    def feed_in_chunks(self, data: st.DataObject, tokens: list[int], fails: bool, chunk: int) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        if chunk == 1:
            del tokens[LOG_TOKENS:]
        self.feed(sequence, tokens, fails, chunk)

    def feed(self, sequence: Sequence, tokens: list[int], fails: bool = False, chunk: int = 512) -> None:
        try:
            sequence.reserve(sequence.length + len(tokens))
        except ResourceExhausted:
            return
        for start in range(0, len(tokens), chunk):
            self.slots.feed(sequence, tokens[start : start + chunk])
        if fails:
            self.slots.feed(sequence, [3], fails=True)
            assert not sequence.is_intact
            sequence.truncate(sequence.length)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        sequence.commit(sequence.length)

    @precondition(lambda self: self.sequences and len(self.sequences) < NUM_SLOTS + 1)
    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        parent = data.draw(st.sampled_from(self.sequences))
        length = data.draw(st.integers(0, parent.length))
        forked = open_sequence(options(1), self.pool)
        forked.fork(parent, length)
        assert forked.tokens == parent.tokens[: forked.length]
        assert forked.length <= length
        self.sequences.append(forked)

    @precondition(lambda self: self.sequences)
    @rule(data=st.data(), by=st.one_of(st.integers(0, LOG_TOKENS), st.integers(0, 5000)))
    def truncate(self, data: st.DataObject, by: int) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        before, length = list(sequence.tokens), max(0, sequence.length - by)
        sequence.truncate(length)
        assert sequence.length <= length
        assert sequence.tokens == before[: sequence.length]

    @precondition(lambda self: self.sequences)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        sequence = data.draw(st.sampled_from(self.sequences))
        sequence.commit(sequence.length)
        sequence.truncate(0)
        self.sequences.remove(sequence)

    @invariant()
    def nothing_is_lost(self) -> None:
        self.pool.check_integrity(sequence.blocks for sequence in self.sequences)
        self.pool.states.check_integrity(each.slot for each in self.sequences if each.slot is not None)
        for sequence in self.sequences:
            assert (sequence.slot is not None) == bool(sequence.blocks)


def test_no_history_of_sequences_leaves_dropped_tokens_in_a_state() -> None:
    profile = settings(
        max_examples=60, stateful_step_count=30, deadline=None, derandomize=True, database=None,
        # Shrinking a history takes minutes.
        phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(StateMachine, settings=profile)


def fed(pool: BlockPool, slots: Slots, tokens: list[int], num_prompt_tokens: int, chunk: int = 512) -> Sequence:
    sequence = open_sequence(options(num_prompt_tokens), pool)
    sequence.reserve(len(tokens))
    for start in range(0, len(tokens), chunk):
        slots.feed(sequence, tokens[start : start + chunk])
    return sequence


def tokens_of(seed: int, count: int) -> list[int]:
    return random.Random(seed).choices(range(100), k=count)


def test_rejected_drafts_are_rolled_back_without_losing_a_token() -> None:
    pool, slots = make()
    sequence = fed(pool, slots, tokens_of(0, 200), 200)
    for num_accepted in (0, 16, 3, 16, 16, 1):
        length = sequence.length
        sequence.commit(length)
        sequence.reserve(length + 17)
        slots.feed(sequence, [4] * 17)
        sequence.truncate(length + 1 + num_accepted)
        assert sequence.length == length + 1 + num_accepted
        slots.feed(sequence, [])


@pytest.mark.parametrize("num_tokens", [10 * BLOCK_SIZE, SNAPSHOT_TOKENS])
def test_a_prompt_sent_again_is_found_up_to_its_last_full_block(num_tokens: int) -> None:
    pool, slots = make()
    prompt = tokens_of(0, num_tokens)
    first = fed(pool, slots, prompt + [1] * 50, len(prompt))
    first.commit(first.length)
    first.truncate(0)
    second = open_sequence(options(len(prompt)), pool)
    assert second.match_prefix(prompt[:-1]) == num_tokens - BLOCK_SIZE
    slots.feed(second, [])


def test_blocks_without_a_snapshot_at_their_end_are_not_taken() -> None:
    pool, slots = make()
    tokens = tokens_of(0, SNAPSHOT_TOKENS + 20 * BLOCK_SIZE)
    fed(pool, slots, tokens, len(tokens)).commit(len(tokens))
    assert open_sequence(options(1), pool).match_prefix(tokens[: SNAPSHOT_TOKENS + 5 * BLOCK_SIZE]) == SNAPSHOT_TOKENS
    assert open_sequence(options(1), pool).match_prefix(tokens[: SNAPSHOT_TOKENS - 1]) == 0


def test_a_rollback_below_the_log_goes_to_a_snapshot_else_to_the_start() -> None:
    pool, slots = make()
    tokens = tokens_of(0, SNAPSHOT_TOKENS + 500)
    sequence = fed(pool, slots, tokens, 1)
    sequence.commit(sequence.length)
    sequence.truncate(SNAPSHOT_TOKENS + 300)
    assert sequence.length == SNAPSHOT_TOKENS
    slots.feed(sequence, [])
    sequence.truncate(SNAPSHOT_TOKENS - 1)
    assert sequence.length == 0


def test_a_fork_within_the_log_has_a_state_of_its_own() -> None:
    pool, slots = make()
    parent = fed(pool, slots, tokens_of(0, 100), 100)
    forked = open_sequence(options(100), pool)
    forked.fork(parent, 90)
    assert forked.length == 90
    for sequence, token in ((parent, 5), (forked, 6)):
        sequence.commit(sequence.length)
        sequence.reserve(sequence.length + 40)
        slots.feed(sequence, [token] * 40)
    slots.feed(parent, [])
    slots.feed(forked, [])


def test_without_a_free_slot_a_fork_starts_empty_and_is_fed_again() -> None:
    pool, slots = make(num_slots=1)
    parent = fed(pool, slots, tokens_of(0, 100), 1)
    forked = open_sequence(options(1), pool)
    forked.fork(parent, 100)
    assert forked.length == 0
    assert forked.lacks_state
    with pytest.raises(ResourceExhausted, match="all 1 recurrent states"):
        forked.reserve(100)
    assert forked.blocks == []


def test_snapshots_give_way_to_sequences_the_least_recently_used_first() -> None:
    pool, slots = make(num_slots=3)
    prompts = [tokens_of(seed, 50) for seed in range(2)]
    for prompt in prompts:
        sequence = fed(pool, slots, prompt, 50)
        sequence.commit(50)
        sequence.truncate(0)
    third = fed(pool, slots, tokens_of(2, 10), 10)
    assert pool.states.num_free == 2
    again = open_sequence(options(50), pool)
    assert again.match_prefix(prompts[0]) == 48
    assert open_sequence(options(50), pool).match_prefix(prompts[1]) == 0
    third.truncate(0)


def test_the_last_slot_goes_to_the_sequence_that_wants_its_snapshot() -> None:
    pool, slots = make(num_slots=2)
    prompt = tokens_of(0, 50)
    first = fed(pool, slots, prompt, 50)
    first.commit(50)
    first.truncate(0)
    fed(pool, slots, tokens_of(1, 10), 10)
    again = open_sequence(options(50), pool)
    assert again.match_prefix(prompt) == 48
    slots.feed(again, [])
    pool.states.check_integrity([0, 1])


def test_a_snapshot_taken_again_is_the_most_recently_used() -> None:
    pool = StatePool(3)
    for digest in (b"a", b"b", b"a"):
        pool.add(digest, pool.allocate())
    for _ in range(2):
        pool.allocate()
    assert pool.restore(b"b") is None
    assert pool.restore(b"a") is not None


def test_sequences_without_recurrent_layers_have_no_state() -> None:
    pool = BlockPool(4, BLOCK_SIZE, lambda sources, destinations: None)
    sequence = open_sequence(options(1), pool)
    assert type(sequence) is Sequence
    assert sequence.plan_state(1) is None
    assert not sequence.lacks_state
