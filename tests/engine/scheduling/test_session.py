"""One stream's commands: what runs in order, what overtakes, and what a failure leaves behind."""

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.scheduling import preemption
from paceline.engine.scheduling.commands import Command, Fork, Open, Release, Start, Suggest, Truncate
from paceline.engine.scheduling.job import Job, ReadJob
from paceline.engine.scheduling.preemption import reserve
from paceline.engine.scheduling.sequence_state import OnClose, SequenceState, Usage, WorkerCounts
from paceline.engine.scheduling.session import Session
from paceline.errors import Cancelled, InternalError, NotFound, OutOfRange, ResourceExhausted
from paceline.grammar import Grammar
from paceline.sampling_params import SamplingParams

NUM_BLOCKS, BLOCK_SIZE = 20, 8
OPTIONS = SequenceOptions(SamplingParams(temperature=0, seed=1), 2, (), traceparent="of some trace")


class ReadingJob(ReadJob):
    """Its result is what the cache then holds."""

    @property
    def result(self) -> list[int]:
        return list(self.sequence.tokens)


class Stream:
    """A session without a model: `feed` stands for the engine's steps."""

    def __init__(self, caches_prefixes: bool = True, on_close: OnClose | None = None) -> None:
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE, lambda sources, destinations: None, caches_prefixes)
        self.session = Session(
            self.pool, 512, self._reserve_blocks, itertools.count().__next__, WorkerCounts(), on_close
        )

    def _reserve_blocks(self, state: SequenceState, length: int) -> None:
        reserve(self.pool, state, length, self.session.states)

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.session.execute(command)

    def feed(self, num_tokens: int | None = None) -> None:
        """Feeds up to `num_tokens` pending rows of each job, or all."""
        for state in self.session.states:
            if state.job is not None:
                state.sequence.tokens += state.job.pending[:num_tokens]
                state.job.pending = state.job.pending[num_tokens:] if num_tokens is not None else []
                if state.job.is_done:
                    self.session.finish_job(state)

    @property
    def results(self) -> dict[int, Any]:
        """By command id, but not that a sequence was opened."""
        return {answer.command_id: answer.result for answer in self.session.answers}


class GoingOn(ReadingJob):
    """Goes on by itself with 7 behind half of what it fed, and what was suggested behind that."""

    def on_finish(self) -> None:
        self._num_kept = (self.sequence.length + 1) // 2

    def follow(self, start: Start, suggested: Suggest) -> Start:
        length = self._num_kept
        drafts = suggested.behind(self.sequence.tokens, length, 7)

        def make_job(sequence: Sequence, tail: list[int]) -> Job:
            return GoingOn(sequence, tail + drafts)

        return replace(start, position=length, tail=[7], num_more=len(drafts), make_job=make_job)


def opening(sequence_id: int) -> Open:
    """Its command id is that of the sequence, the thousands before it."""
    return Open(1000 * sequence_id, sequence_id, OPTIONS)


def start(command_id: int, sequence_id: int, tokens: list[int], position: int = 0) -> Start:
    return Start(command_id, sequence_id, position, tokens, 0, len(tokens) - 1, ReadingJob)


@pytest.mark.parametrize("num_fed", [0, 10])
def test_a_unary_truncate_beyond_the_end_is_refused_and_drops_nothing(num_fed: int) -> None:
    stream, tokens = Stream(), list(range(100))
    stream.send(opening(1), start(1, 1, tokens))
    stream.feed(num_fed)
    with pytest.raises(OutOfRange, match=f"length is 50, but the cache holds {num_fed} tokens"):
        stream.session.truncate_now(1, 50)
    stream.feed()
    assert stream.results[1] == tokens


def test_a_unary_truncate_of_what_is_not_fed_yet_lets_the_sequence_begin_anew() -> None:
    stream = Stream()
    stream.send(opening(1), start(1, 1, list(range(100))))
    assert stream.session.truncate_now(1, 0) == 0
    assert stream.pool.num_free == NUM_BLOCKS
    stream.send(start(2, 1, [1, 2, 3]))
    stream.feed()
    assert stream.results[2] == [1, 2, 3]


def test_a_truncate_to_a_jobs_start_drops_it_and_one_beyond_waits_for_it() -> None:
    stream = Stream()
    stream.send(opening(1), start(1, 1, list(range(20))))
    stream.feed()
    stream.send(start(2, 1, [20, 21, 22], position=20), Truncate(3, 1, 21))
    assert 2 not in stream.results
    stream.feed()
    assert stream.session.states[0].sequence.length == 21
    stream.send(start(4, 1, [21, 22, 23], position=21))
    stream.feed(1)
    stream.send(Truncate(5, 1, 21), start(6, 1, [30], position=21))
    assert isinstance(stream.results[4], Cancelled)
    stream.feed()
    assert stream.results[6] == [*range(21), 30]
    stream.pool.check_integrity(state.sequence.blocks for state in stream.session.states)


def test_drafts_that_a_job_builds_on_are_cached_for_others_only_once_decided() -> None:
    """What others find must be contexts, and of those all that is decided."""
    stream, context = Stream(), list(range(2 * BLOCK_SIZE - 3))
    stream.send(opening(1), drafting(1, context, drafts=[90, 91, 92]))
    stream.feed()
    drafts = [*context, 90, 91, 92]
    # An early draft after them, which misses, and then one that hits.
    stream.send(start(2, 1, [93], position=len(drafts)), Truncate(3, 1, len(context) + 1))
    assert num_indexed(stream, drafts) == BLOCK_SIZE
    stream.send(drafting(4, [80], drafts=[81, 82, 83], position=len(context) + 1))
    stream.feed()
    chain = [*context, 90, 80, 81, 82, 83]
    stream.send(drafting(5, [84], drafts=[85, 86], position=len(chain)))
    stream.feed()
    stream.send(start(6, 1, [87], position=len(chain) + 3))
    assert num_indexed(stream, chain) == 2 * BLOCK_SIZE


def drafting(command_id: int, tail: list[int], drafts: list[int], position: int = 0) -> Start:
    """Feeds drafts of its own after the tail."""
    return Start(
        command_id, 1, position, tail, len(drafts), 0, lambda sequence, rest: ReadingJob(sequence, [*rest, *drafts])
    )


def num_indexed(stream: Stream, tokens: list[int]) -> int:
    """How many of the tokens a new sequence finds."""
    return Sequence(OPTIONS, stream.pool).match_prefix(tokens)


def end_by_a_fork(stream: Stream) -> None:
    stream.send(opening(2), Fork(2, 2, 1, 100), Release(3, 1))


def end_by_a_dropped_job(stream: Stream) -> None:
    stream.send(start(2, 1, [7], position=100), Truncate(3, 1, 99))


def end_by_a_failed_job(stream: Stream) -> None:
    stream.send(start(2, 1, [7], position=100))
    stream.session.fail_job(stream.session.states[0], InternalError("a fault"))


@pytest.mark.parametrize("end", [end_by_a_fork, end_by_a_dropped_job, end_by_a_failed_job])
def test_however_a_sequence_became_idle_it_gives_way_when_it_was_so_for_long(
    end: Callable[[Stream], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Stream()
    stream.send(opening(1), start(1, 1, list(range(100))))
    stream.feed()
    stream.session.states[0].idle_since_s -= 2 * preemption.LONG_S
    end(stream)
    stream.send(opening(3), start(4, 3, [9] * 100))
    assert isinstance(stream.results[4], ResourceExhausted)
    monkeypatch.setattr(preemption, "LONG_S", -1.0)
    stream.send(Truncate(5, 3, 0), start(6, 3, [9] * 100))
    stream.feed()
    assert stream.results[6] == [9] * 100


@pytest.mark.parametrize("caches_prefixes", [True, False])
def test_what_the_cache_held_before_decides_no_order(caches_prefixes: bool) -> None:
    stream, tokens = Stream(caches_prefixes), list(range(40))
    stream.send(opening(1), start(1, 1, tokens))
    stream.feed()
    stream.send(Release(2, 1), opening(2), start(3, 2, tokens), Truncate(4, 2, 20))
    stream.feed()
    assert stream.results[3] == tokens
    assert stream.session.states[0].sequence.length == 20


def test_a_failed_job_leaves_nothing_of_what_it_took_over() -> None:
    stream, tokens = Stream(), list(range(40))
    stream.send(opening(1), start(1, 1, tokens))
    stream.feed()
    stream.send(Release(2, 1), opening(2), start(3, 2, tokens))
    [state] = stream.session.states
    assert state.job is not None
    assert state.job.num_cached_tokens == 32
    stream.session.fail_job(state, InternalError("a fault"))
    assert stream.session.answers[-1].cache_length == 0
    assert stream.pool.num_free == NUM_BLOCKS


def test_usage_tells_what_was_read_from_what_was_held() -> None:
    usages: list[Usage] = []
    stream = Stream(on_close=lambda options, usage: usages.append(usage))
    for sequence_id in (1, 2):
        stream.send(opening(sequence_id), start(2 * sequence_id, sequence_id, list(range(40))))
        stream.feed()
        stream.send(Release(2 * sequence_id + 1, sequence_id))
    assert [(usage.read_tokens, usage.cached_tokens) for usage in usages] == [(40, 0), (8, 32)]


def released(command_id: int, sequence_id: int, tail: list[int], position: int) -> Release:
    return Release(command_id, sequence_id, position, tail)


@pytest.mark.parametrize("ends", ["read", "failed", "closed", "stopped"])
def test_a_released_sequence_reads_its_tail_for_requests_to_come(ends: str) -> None:
    usages: list[Usage] = []
    stream, text = Stream(on_close=lambda options, usage: usages.append(usage)), list(range(3 * BLOCK_SIZE))
    stream.send(opening(1), start(1, 1, text[:20]))
    stream.feed()
    stream.send(released(2, 1, [*text[20:], 7], 20), opening(3), start(4, 3, [9, 9]))
    # Nothing reaches it any more, and nobody waits for it.
    stream.send(Truncate(5, 1, 0), Fork(6, 3, 1, 4))
    assert isinstance(stream.results[5], NotFound)
    with pytest.raises(NotFound):
        stream.session.release_now(1)
    leaving, other = stream.session.states
    assert leaving.job is not None
    # What is behind the last block can't be found.
    assert leaving.job.pending == text[20:]
    assert other.job is not None
    if ends == "closed":
        stream.session.close()
    elif ends == "read":
        leaving.job.take(len(leaving.job.pending), [], [])
        stream.session.finish_job(leaving)
    elif ends == "failed":
        stream.session.fail_job(leaving, InternalError("a fault"))
    else:
        stream.session.stop_reading()
    assert stream.pool.num_free == NUM_BLOCKS - (ends != "closed")
    assert 2 not in stream.results
    # The request is over: what is read behind it is not its own, nor is a failure.
    assert (usages[0].read_tokens, usages[0].failure) == (20, None)
    assert num_indexed(stream, text) == (3 if ends == "read" else 2) * BLOCK_SIZE


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(released(2, 1, [7] * 3, 20), id="fills no block"),
        pytest.param(released(2, 1, [7] * 6, 17), id="fills no block, of another length"),
        pytest.param(released(2, 1, [7] * 20, 21), id="another length"),
        pytest.param(released(2, 1, [7] * 600, 20), id="longer than the model takes"),
        pytest.param(released(2, 1, [7] * 100, 20), id="others have the blocks"),
    ],
)
def test_a_tail_that_can_t_be_read_keeps_no_sequence(command: Release) -> None:
    stream = Stream()
    stream.send(opening(1), start(1, 1, list(range(20))), opening(2), start(9, 2, [5] * 60))
    stream.feed()
    stream.send(command)
    assert stream.session.num_sequences == 1
    assert stream.session.states[0].sequence.tokens == [5] * 60
    assert 2 not in stream.results


@pytest.mark.parametrize("ends", ["compiled", "released"])
def test_a_sequence_waits_for_its_grammar_and_no_other_does(ends: str) -> None:
    stream, compiling = Stream(), Future[Any]()
    waiting = replace(OPTIONS, grammar=Grammar(lambda: compiling, frozenset()))
    stream.send(Open(1000, 1, waiting), start(1, 1, [1, 2, 3]), opening(2), start(2, 2, [4, 5]))
    stream.feed()
    assert 1 not in stream.results
    assert stream.results[2] == [4, 5]
    if ends == "released":
        stream.send(Release(3, 1))
    compiling.set_result(None)
    stream.feed()
    assert stream.results[1] == [1, 2, 3] or ends == "released"
    assert stream.session.num_sequences == (2 if ends == "compiled" else 1)


def going_on(command_id: int, tokens: list[int], position: int = 0) -> Start:
    return replace(start(command_id, 1, tokens, position), make_job=GoingOn, follow=GoingOn.follow)


def test_a_job_that_goes_on_answers_each_time_and_keeps_what_it_says() -> None:
    stream = Stream()
    stream.send(opening(1), going_on(1, list(range(20))))
    for _ in range(3):
        stream.feed()
    answers = [(each.result, each.has_more) for each in stream.session.answers if each.command_id == 1]
    assert answers == [(list(range(20)), True), ([*range(10), 7], True), ([*range(6), 7], True)]


@pytest.mark.parametrize("is_at_start", [True, False])
def test_it_ends_for_the_sequences_next_command(is_at_start: bool) -> None:
    """A Truncate to where the job began drops it; one beyond waits for it, and is not made to wait for more."""
    stream = Stream()
    stream.send(opening(1), going_on(1, list(range(20))))
    stream.feed()
    length = 10 if is_at_start else 11
    stream.send(Truncate(2, 1, length), start(3, 1, [9], position=length))
    for _ in range(2):
        stream.feed()
    *_, last, answer = stream.session.answers
    assert (last.command_id, last.has_more, isinstance(last.result, Cancelled)) == (1, False, is_at_start)
    assert answer.result == ([*range(10), 9] if is_at_start else [*range(10), 7, 9])


@pytest.mark.parametrize("is_early", [True, False])
def test_suggested_drafts_join_the_next_round_whether_or_not_it_waits_already(is_early: bool) -> None:
    stream = Stream()
    suggest = Suggest(2, 1, 10, [7, 50, 51])
    stream.send(opening(1), going_on(1, list(range(20))), *[suggest] * is_early)
    stream.feed()
    stream.send(*[suggest] * (not is_early))
    stream.feed()
    stream.feed()
    results = [each.result for each in stream.session.answers if each.command_id == 1]
    # The third round begins at 7 tokens, of which it says nothing.
    assert results[1:] == [[*range(10), 7, 50, 51], [*range(7), 7]]
    assert 2 not in stream.results


@pytest.mark.parametrize(
    ("position", "tokens"), [(10, [8, 50]), (9, [9, 8, 50]), (11, [7, 50]), (10, [7]), (99, [7, 50])]
)
def test_drafts_of_another_text_are_left_out(position: int, tokens: list[int]) -> None:
    stream = Stream()
    stream.send(opening(1), going_on(1, list(range(20))), Suggest(2, 1, position, tokens))
    stream.feed()
    stream.send(Suggest(3, 1, position, tokens))
    stream.feed()
    assert stream.session.answers[-1].result == [*range(10), 7]


def test_drafts_that_come_in_the_middle_of_a_round_wait_for_the_next() -> None:
    stream = Stream()
    stream.send(opening(1), going_on(1, list(range(20))), Suggest(2, 1, 9, [9, 7, 50]))
    stream.feed()
    stream.feed(1)
    stream.send(Suggest(3, 1, 6, [6, 7, 52, 53]))
    stream.feed()
    assert stream.session.answers[-1].result == [*range(10), 7, 50]
    stream.feed()
    assert stream.session.answers[-1].result == [*range(6), 7]


@pytest.mark.parametrize("is_early", [True, False])
def test_suggested_drafts_without_room_leave_the_round_as_it_was(is_early: bool) -> None:
    stream = Stream()
    stream.send(opening(1), opening(2), going_on(1, list(range(14))))
    stream.send(start(2, 2, list(range(100, 100 + (NUM_BLOCKS - 2) * BLOCK_SIZE))))
    if is_early:
        stream.send(Suggest(4, 1, 7, [7, *range(60, 76)]))
    stream.feed()
    stream.send(start(3, 2, [5], position=(NUM_BLOCKS - 2) * BLOCK_SIZE), Suggest(4, 1, 7, [7, *range(60, 76)]))
    stream.feed()
    answer = next(each for each in reversed(stream.session.answers) if each.command_id == 1)
    assert (answer.result, answer.has_more) == ([*range(7), 7], True)
    assert all(state.failure is None for state in stream.session.states)
    # Nobody waits for room because of them.
    _, younger = stream.session.states
    assert not stream.session._refusal.concerns(younger)


def test_it_ends_where_it_is_told_to_and_the_next_command_is_told_nothing() -> None:
    stream = Stream()
    stream.send(opening(1), going_on(1, list(range(20))))
    stream.feed()
    stream.send(Suggest(2, 1, 10, [], is_last=True))
    stream.feed()
    assert (stream.session.answers[-1].result, stream.session.answers[-1].has_more) == ([*range(10), 7], False)
    stream.send(going_on(3, [8], position=11))
    stream.feed()
    assert (stream.session.answers[-1].result, stream.session.answers[-1].has_more) == ([*range(10), 7, 8], True)


def test_it_ends_where_no_block_is_left_and_others_find_no_fault() -> None:
    stream, tokens = Stream(), list(range(8))
    stream.send(opening(1), opening(2))
    stream.send(replace(start(1, 1, tokens), follow=lambda job, start, suggested: replace(start, position=8, tail=[7])))
    # All blocks but the one that it has; what holds them is not idle.
    stream.send(start(2, 2, list(range(100, 100 + (NUM_BLOCKS - 1) * BLOCK_SIZE))))
    state, _ = stream.session.states
    assert state.job is not None
    state.sequence.tokens += state.job.pending
    state.job.pending = []
    stream.session.finish_job(state)
    answer = stream.session.answers[-1]
    assert (answer.command_id, answer.result, answer.has_more) == (1, tokens, False)
    assert state.failure is None


def test_a_younger_one_does_not_go_on_while_an_older_one_finds_no_room() -> None:
    """One that runs can't be preempted, and the older one's next attempt must find it idle."""
    stream = Stream()
    stream.send(opening(1), opening(2), start(1, 1, list(range(8))))
    stream.feed()
    stream.send(
        replace(
            start(2, 2, list(range(100, 100 + (NUM_BLOCKS - 1) * BLOCK_SIZE))), make_job=GoingOn, follow=GoingOn.follow
        )
    )
    stream.send(start(3, 1, list(range(40)), position=8))
    assert isinstance(stream.results[3], ResourceExhausted)
    stream.feed()
    assert (stream.session.answers[-1].command_id, stream.session.answers[-1].has_more) == (2, False)
    stream.send(Truncate(4, 1, 8), start(5, 1, list(range(40)), position=8))
    stream.feed()
    assert stream.results[5] == [*range(8), *range(40)]
