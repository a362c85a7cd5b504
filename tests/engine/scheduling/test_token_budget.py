"""A step's token budget: the short go first, and the long go on."""

import itertools

import pytest

from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence
from paceline.engine.scheduling.job import Job
from paceline.engine.scheduling.step import LARGER_PART, ROUND_TOKENS, SMALLER_PART, share_budget
from tests.engine.scheduling.test_session import OPTIONS, ReadingJob

BUDGET = 512
POOL = BlockPool(1, 16, lambda sources, destinations: None)
CLOCK = itertools.count()


def job(num_tokens: int) -> Job:
    """A job that arrives now, behind all before it."""
    made = ReadingJob(Sequence(OPTIONS, POOL), [1] * num_tokens)
    made.arrived_s = float(next(CLOCK))
    return made


def rows_of(jobs: list[Job], budget: int = BUDGET, step: int = 0) -> list[int]:
    shares = dict(share_budget(jobs, budget, step))
    assert sum(shares.values()) == min(budget, sum(len(each.pending) for each in jobs))
    assert all(0 < num_tokens <= len(each.pending) for each, num_tokens in shares.items())
    return [shares.get(each, 0) for each in jobs]


def steps_until_fed(waiting: Job, others: list[Job], others_rows: int, budget: int = BUDGET) -> int:
    """Steps until `waiting` is fed, where each of `others` comes anew, with as many rows, as soon as it is fed."""
    for step in range(10_000):
        shares = share_budget([*others, waiting], budget, step)
        for each, num_tokens in shares:
            del each.pending[:num_tokens]
        if not waiting.pending:
            return step + 1
        others = [job(others_rows) if each.is_done else each for each in others]
    raise AssertionError(f"{len(waiting.pending)} rows still wait")


@pytest.mark.parametrize("others_rows", [1, 5, ROUND_TOKENS, 200, 479])
@pytest.mark.parametrize("num_others", [8, 600])
def test_who_waits_is_fed_whatever_keeps_coming(num_others: int, others_rows: int) -> None:
    before = [job(others_rows) for _ in range(num_others)]
    in_the_queue = num_others * others_rows + 480
    assert steps_until_fed(job(480), before, others_rows) <= -(-in_the_queue // (BUDGET // SMALLER_PART))


def test_a_long_prompt_among_shorter_ones_is_read_in_a_few_steps() -> None:
    waiting = job(480)
    assert steps_until_fed(waiting, [job(200) for _ in range(8)], 200) <= LARGER_PART + 8 * 200 // (
        BUDGET // LARGER_PART
    )


@pytest.mark.parametrize("num_rounds", [10, 80, 96])
def test_a_round_of_drafts_waits_for_no_prompt(num_rounds: int) -> None:
    """As long as it leaves a row in sixteen."""
    prompts, rounds = [job(400), job(300)], [job(5) for _ in range(num_rounds)]
    assert rows_of([*prompts, *rounds])[2:] == [5] * num_rounds


def test_the_shorter_of_two_prompts_is_read_first_and_the_longer_goes_on() -> None:
    assert rows_of([job(2000), job(300)]) == [BUDGET - 300, 300]
    assert rows_of([job(2000), job(500)]) == [BUDGET // LARGER_PART, BUDGET - BUDGET // LARGER_PART]


def test_rounds_that_fill_the_budget_leave_a_prompt_its_smaller_part() -> None:
    assert rows_of([job(400), *(job(5) for _ in range(200))])[0] == BUDGET // SMALLER_PART


def test_equal_jobs_take_turns() -> None:
    jobs = [job(12) for _ in range(3)]
    assert [rows_of(jobs, 16, step) for step in range(3)] == [[12, 4, 0], [1, 12, 3], [4, 0, 12]]


def test_a_budget_of_one_row_goes_to_who_came_first() -> None:
    assert rows_of([job(2), job(1)], budget=1) == [1, 0]
