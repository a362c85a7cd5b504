"""After any history a cache is what its length says: the next answer is a fresh sequence's.

Random commands go to a real server. Answers are compared whole, with those of a server that
caches no prefixes: tokens, supports, and probabilities to the last bit, with noise keyed alike.
"""

import random
import time
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tests.hosted import HostedService
from tests.serving.raw_session import RawSession, propose, release, release_after, substance_of, truncate, verify

pytestmark = pytest.mark.slow

VOCAB_SIZE = 512
LONGEST = 300
COUNTS = st.integers(1, 40)
FAILED_PRECONDITION, OUT_OF_RANGE, INVALID_ARGUMENT, CANCELLED = 9, 11, 3, 1


class CacheMachine(RuleBasedStateMachine):
    """Believes of each sequence only the tokens it must hold."""

    service: HostedService
    uncached: HostedService

    @initialize(seed=st.integers(0, 10**6))
    def connect(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.session = RawSession(self.service)
        self.oracle = RawSession(self.uncached)
        self.held: dict[int, list[int]] = {}

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(VOCAB_SIZE) for _ in range(count)]

    def some_sequence(self) -> int:
        return self.random.choice(list(self.held))

    def proposes(self) -> bool:
        """Whether the next command is a Propose. A target server executes both kinds."""
        return self.service.module == "draft_server" or self.random.random() < 0.4

    def work(self, position: int, tail: list[int], drafts: list[int], proposes: bool | None = None) -> Any:
        if self.proposes() if proposes is None else proposes:
            return propose(position, tail, max(1, len(drafts)))
        return verify(position, tail, drafts, support=[1, 2, 3, 5, 8])

    @rule()
    def open(self) -> None:
        if len(self.held) < 6:
            self.held[self.session.open()] = []

    @precondition(lambda self: self.held)
    @rule(num_tail=COUNTS, num_drafts=st.integers(0, 5))
    def feed(self, num_tail: int, num_drafts: int) -> None:
        sequence = self.some_sequence()
        held, tail, drafts = self.held[sequence], self.tokens(num_tail), self.tokens(num_drafts)
        if len(held) + num_tail > LONGEST:
            return
        self.feed_and_compare(sequence, tail, drafts)

    @precondition(lambda self: self.held)
    @rule(num_tail=COUNTS, num_drafts=st.integers(0, 5))
    def open_alike(self, num_tail: int, num_drafts: int) -> None:
        """A sequence that begins as another, up to somewhere."""
        other = self.held[self.some_sequence()]
        tail = other[: self.random.randint(0, len(other))] + self.tokens(num_tail)
        if len(self.held) < 6 and len(tail) <= LONGEST:
            sequence = self.session.open()
            self.held[sequence] = []
            self.feed_and_compare(sequence, tail, self.tokens(num_drafts))

    def feed_and_compare(self, sequence: int, tail: list[int], drafts: list[int]) -> None:
        held, proposes = self.held[sequence], self.proposes()
        answer = self.session.ask(sequence, self.work(len(held), tail, drafts, proposes))
        fresh = self.oracle.open()
        expected = self.oracle.ask(fresh, self.work(0, held + tail, drafts, proposes))
        self.oracle.send(fresh, release)
        assert substance_of(answer) == substance_of(expected)
        self.held[sequence] = held + tail + (list(answer.proposal.tokens)[:-1] if proposes else drafts)

    @precondition(lambda self: self.held)
    @rule()
    def shorten(self) -> None:
        sequence = self.some_sequence()
        # Not hypothesis's choice: it likes 0 and the whole, and the ends of blocks lie between.
        length = self.random.randint(0, len(self.held[sequence]))
        self.session.send(sequence, truncate(length))
        del self.held[sequence][length:]

    @precondition(lambda self: self.held)
    @rule(gap=st.sampled_from([-1, 1, 7]))
    def leave_a_gap(self, gap: int) -> None:
        sequence = self.some_sequence()
        length = len(self.held[sequence])
        if length + gap >= 0:
            self.fail_and_heal(sequence, self.work(length + gap, [1], [2]), FAILED_PRECONDITION)

    @precondition(lambda self: self.held)
    @rule()
    def cut_beyond_the_end(self) -> None:
        sequence = self.some_sequence()
        self.fail_and_heal(sequence, truncate(len(self.held[sequence]) + 1), OUT_OF_RANGE)

    @precondition(lambda self: self.held)
    @rule()
    def send_a_token_outside_the_vocabulary(self) -> None:
        sequence = self.some_sequence()
        self.fail_and_heal(sequence, self.work(len(self.held[sequence]), [VOCAB_SIZE], [2]), INVALID_ARGUMENT)

    def fail_and_heal(self, sequence: int, command: Any, code: int) -> None:
        failure = self.session.ask(sequence, command).failure
        assert failure.status.code == code, failure
        self.session.send(sequence, truncate(len(self.held[sequence])))

    @precondition(lambda self: self.held)
    @rule(cut=st.integers(1, 5))
    def cancel_a_prefill_by_truncating_below_it(self, cut: int) -> None:
        sequence = self.some_sequence()
        held = self.held[sequence]
        if cut <= len(held) <= 100:
            length = len(held) - cut
            long = self.work(len(held), self.tokens(350), [])
            dropped, _ = self.session.send(sequence, long, truncate(length))
            answer = self.session.answer(dropped)
            assert answer.WhichOneof("answer") != "failure" or answer.failure.status.code == CANCELLED
            del held[length:]

    @precondition(lambda self: self.held)
    @rule(running=st.booleans())
    def release(self, running: bool) -> None:
        sequence = self.some_sequence()
        if running and len(self.held[sequence]) <= 100:
            self.session.send(sequence, self.work(len(self.held[sequence]), self.tokens(350), []), release)
        else:
            self.session.send(sequence, release)
        del self.held[sequence]

    @precondition(lambda self: self.held)
    @rule(num_tail=COUNTS, gap=st.sampled_from([0, 0, 0, 1]), unknown=st.sampled_from([0, 0, 1]), num_more=COUNTS)
    def release_after_reading(self, num_tail: int, gap: int, unknown: int, num_more: int) -> None:
        """And what continues the text comes at once."""
        sequence = self.some_sequence()
        held, tail = self.held.pop(sequence), self.tokens(num_tail)
        if len(held) + max(num_tail, num_more) * 2 > LONGEST:
            self.session.send(sequence, release)
            return
        self.session.send(sequence, release_after(len(held) + gap, tail + unknown * [VOCAB_SIZE]))
        following = self.session.open()
        self.held[following] = []
        self.feed_and_compare(following, [*held, *tail, *self.tokens(num_more)], [])

    @invariant()
    def expect_blocks_as_held(self) -> None:
        """When idle, the blocks in use are those of the tokens held, and no other.

        Sequences that begin alike may share the blocks of their beginning, or each have their own.
        """
        deadline_s = time.monotonic() + 10
        while True:
            model_info = self.session.describe()
            used, (fewest, most) = (
                model_info.total_blocks - model_info.free_blocks,
                self.blocks_held(model_info.block_size),
            )
            if fewest <= used <= most:
                return
            # A Release is not answered; it takes effect at the next engine step.
            assert time.monotonic() < deadline_s, f"{used} blocks are in use, {fewest} to {most} hold tokens"
            time.sleep(0.002)

    def blocks_held(self, size: int) -> tuple[int, int]:
        """With all sharing that can be, and with none."""
        behind: dict[tuple[int, ...], set[tuple[int, ...]]] = defaultdict(set)
        for held in self.held.values():
            for start in range(0, len(held), size):
                behind[tuple(held[:start])].add(tuple(held[start : start + size]))
        # One that was cut inside a shared block still holds it.
        fewest = sum(max(1, sum(len(block) == size for block in blocks)) for blocks in behind.values())
        return fewest, sum(-(-len(held) // size) for held in self.held.values())

    def teardown(self) -> None:
        """No block is lost: with all released, all are free."""
        if not hasattr(self, "session"):
            return
        for sequence in self.held:
            self.session.send(sequence, release)
        self.held.clear()
        self.expect_blocks_as_held()
        self.session.close()
        self.oracle.close()


def run_machine(request: pytest.FixtureRequest, role: str, examples: int, steps: int) -> None:
    servers = {"service": request.getfixturevalue(role), "uncached": request.getfixturevalue(f"uncached_{role}")}
    machine = type("Machine", (CacheMachine,), servers)
    profile = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, derandomize=True,
        suppress_health_check=list(HealthCheck), database=None,
        # A history that loses a block waits for it in vain: to shrink it would take longer than a test may.
        phases=[Phase.generate],
    )  # fmt: skip
    run_state_machine_as_test(machine, settings=profile)


@pytest.mark.parametrize("role", ["draft_server", "target_server"])
def test_any_history_leaves_what_a_fresh_sequence_has(role: str, request: pytest.FixtureRequest) -> None:
    run_machine(request, role, examples=15, steps=30)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("role", ["draft_server", "target_server"])
def test_any_long_history_leaves_what_a_fresh_sequence_has(role: str, request: pytest.FixtureRequest) -> None:
    run_machine(request, role, examples=100, steps=60)
