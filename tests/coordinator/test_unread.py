"""What callers leave unread: how much of it is kept, and who pays for too much."""

import asyncio
import gc
import tracemalloc

import pytest

from coordinator.unread import CALL_FRACTION, OVERHEAD_BYTES, UnreadAnswer, UnreadAnswers
from paceline.errors import ResourceExhausted

MOST = 4000
MOST_OF_A_CALL = MOST // CALL_FRACTION


def answer_of(answers: UnreadAnswers, ended: list[str], name: str = "") -> UnreadAnswer[int]:
    return UnreadAnswer(answers, lambda: ended.append(name))


def message(num_bytes: int) -> bytes:
    """One that counts as so many."""
    return bytes(num_bytes - OVERHEAD_BYTES)


async def test_messages_come_in_order_and_count_until_they_are_read() -> None:
    answers, ended = UnreadAnswers(MOST), []
    answer = answer_of(answers, ended)
    parts = [(0, message(200)), (1, message(300)), (0, None)]
    for part in parts:
        answer.put(*part)
    assert answers.num_bytes == 500 + OVERHEAD_BYTES
    assert [await answer.get() for _ in range(3)] == parts
    assert (answers.num_bytes, ended) == (0, [])


@pytest.mark.parametrize("num_bytes", [40, 200, 1500])
async def test_what_counts_is_the_memory_it_takes(num_bytes: int) -> None:
    answers = UnreadAnswers(1 << 30)
    answer = answer_of(answers, [])
    # Tuples that tests before have freed are kept for use again, and would not be counted.
    gc.collect()
    tracemalloc.start()
    for _ in range(2000):
        # A copy: equal bytes may be one object.
        answer.put(1, bytes(bytearray(num_bytes)))
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken <= answers.num_bytes <= 2 * taken


async def test_a_call_with_too_much_is_ended_and_what_it_held_is_forgotten() -> None:
    answers, ended = UnreadAnswers(MOST), []
    answer = answer_of(answers, ended, "too much")
    answer.put(1, message(MOST_OF_A_CALL))
    assert ended == []
    answer.put(2, None)
    assert (answers.num_bytes, ended) == (0, ["too much"])
    answer.put(3, message(200))
    assert answers.num_bytes == 0
    said = f"{MOST_OF_A_CALL + OVERHEAD_BYTES} bytes .* at most {MOST_OF_A_CALL} .* {MOST}"
    with pytest.raises(ResourceExhausted, match=said):
        await answer.get()


async def test_too_much_in_all_ends_the_call_that_has_most() -> None:
    answers, ended = UnreadAnswers(MOST), []
    sizes = {"a": 700, "b": 900, "c": 800, "d": 600, "e": 500}
    calls = {name: answer_of(answers, ended, name) for name in sizes}
    for name, size in sizes.items():
        calls[name].put(1, message(size))
    assert answers.num_bytes == sum(sizes.values())
    calls["e"].put(2, message(399))
    calls["d"].put(2, message(140))
    assert ended == ["b"]
    assert answers.num_bytes == sum(sizes.values()) + 539 - sizes["b"]
    assert await calls["a"].get() == (1, message(700))


async def test_a_waiting_reader_hears_of_the_end() -> None:
    answer = answer_of(UnreadAnswers(MOST), [])
    reading = asyncio.create_task(answer.get())
    await asyncio.sleep(0)
    answer.put(1, message(MOST_OF_A_CALL + 1))
    with pytest.raises(ResourceExhausted):
        await reading


async def test_a_closed_call_counts_no_more() -> None:
    answers = UnreadAnswers(MOST)
    answer = answer_of(answers, [])
    answer.put(1, message(500))
    answer.close()
    assert answers.num_bytes == 0
