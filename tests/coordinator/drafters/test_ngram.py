"""n-grams: known sequences, what leaves the window, and what must never enter the tables."""

import asyncio
import random
import tracemalloc
from collections.abc import Sequence

import pytest

from coordinator.drafters.ngram import CHUNK_TOKENS, NgramDrafter
from coordinator.drafters.ngram_table import DEFAULT_SHAPE, NgramShape, NgramTable, Prediction
from tests.coordinator.contexts import decide, make_context

ORDERS = [(4, 3, 2), (2,), (4, 2), (3,), (8, 5, 3)]


def make_table(tokens: Sequence[int], shape: NgramShape = DEFAULT_SHAPE) -> NgramTable:
    table = NgramTable(shape)
    for token in tokens:
        table.add(token)
    return table


def brute_force(tokens: Sequence[int], tail: Sequence[int], orders: Sequence[int] = (4, 3, 2)) -> Prediction | None:
    """The definition, spelled out: no tables, every n-gram of `tokens` looked at."""
    for order in orders:
        length = order - 1
        context = list(tail[-length:])
        places = [i + length for i in range(len(tokens) - length) if list(tokens[i : i + length]) == context]
        if len(context) == length and places:
            followers = [tokens[place] for place in places]
            last = dict(zip(followers, places, strict=True))
            best = max(last, key=lambda token: (followers.count(token), last[token]))
            return Prediction(best, length, followers.count(best))
    return None


def test_longest_context_decides_against_a_more_frequent_shorter_one() -> None:
    # After 3 alone comes 9, twice; after 1 2 3 came 4.
    table = make_table([1, 2, 3, 4, 7, 3, 9, 8, 3, 9])
    assert table.predict([1, 2, 3]) == Prediction(4, 3, 1)
    assert table.predict([5, 2, 3]) == Prediction(4, 2, 1)
    assert table.predict([1, 5, 3]) == Prediction(9, 1, 2)
    assert table.predict([1, 2, 5]) is None


def test_tail_shorter_than_the_longest_context_matches_by_what_it_has() -> None:
    table = make_table([1, 2, 3, 4])
    assert table.predict([2, 3]) == Prediction(4, 2, 1)
    assert table.predict([3]) == Prediction(4, 1, 1)
    assert table.predict([]) is None


def test_last_token_alone_has_no_continuation() -> None:
    assert make_table([1, 2]).predict([2]) is None


def test_most_frequent_continuation_wins_against_the_most_recent() -> None:
    assert make_table([1, 5, 1, 5, 1, 6]).predict([1]) == Prediction(5, 1, 2)


@pytest.mark.parametrize(("tokens", "expected"), [([1, 5, 1, 6], 6), ([1, 5, 1, 6, 1, 6, 1, 5], 5)])
def test_tie_goes_to_the_most_recent(tokens: list[int], expected: int) -> None:
    prediction = make_table(tokens).predict([1])
    assert prediction is not None
    assert prediction.token == expected


def test_counts_leave_with_the_tokens_that_leave_the_window() -> None:
    tokens = [1, 5, 1, 5, 1, 6, 2]
    assert make_table(tokens, NgramShape(7)).predict([1]) == Prediction(5, 1, 2)
    # The first 1 is gone, and with it one of the two times.
    assert make_table(tokens, NgramShape(6)).predict([1]) == Prediction(6, 1, 1)
    assert make_table(tokens, NgramShape(2, (2,))).predict([1]) is None


def test_orders_that_are_left_out_match_nothing() -> None:
    # Behind 1 2 3 came 4, behind 3 alone 9 came last; order 3 would know 2 3 from its first place.
    table = make_table([1, 2, 3, 4, 7, 3, 9], NgramShape(orders=(2, 4)))
    assert table.predict([1, 2, 3]) == Prediction(4, 3, 1)
    assert table.predict([5, 2, 3]) == Prediction(9, 1, 1)
    longest = make_table([*range(20), 7, 9], NgramShape(orders=(2, 8)))
    assert longest.predict(range(1, 8)) == Prediction(8, 7, 1)
    assert longest.predict(range(2, 8)) == Prediction(9, 1, 1)


@pytest.mark.parametrize(
    ("orders", "window"),
    [(orders, window) for orders in ORDERS for window in (2, 3, 4, 5, 8, 9, 17, 60, 1000) if window >= max(orders)],
)
@pytest.mark.parametrize("num_ids", [2, 4])
def test_predicts_what_brute_force_over_the_window_predicts(orders: tuple[int, ...], window: int, num_ids: int) -> None:
    rng = random.Random(window * 10 + num_ids)
    stream = [rng.randrange(num_ids) for _ in range(200)]
    table, longest = NgramTable(NgramShape(window, orders)), max(orders) - 1
    for length, token in enumerate(stream, 1):
        table.add(token)
        # Not only what stands at the end: any context there may be.
        for tail in (stream[max(0, length - longest) : length], [rng.randrange(num_ids) for _ in range(longest)]):
            assert table.predict(tail) == brute_force(stream[max(0, length - window) : length], tail, orders)


def test_table_stays_within_its_bound_when_no_token_comes_twice() -> None:
    # 49 contexts of one token, 48 of two, 47 of three.
    assert len(make_table(range(1000), NgramShape(50))) == 49 + 48 + 47
    assert len(make_table([7] * 1000, NgramShape(50))) == 3
    # 49 of one, 43 of seven.
    assert len(make_table(range(1000), NgramShape(50, (8, 2)))) == 49 + 43


async def test_drafter_is_seeded_with_the_prompt_and_chains_on_its_own_predictions() -> None:
    drafter, context = NgramDrafter(), make_context([1, 2, 3, 4, 5, 6, 1, 2])
    assert (await drafter.propose(context, 3)).tokens == [3, 4, 5]
    # Past the prompt's end the chain goes round once more: 2 was followed by 3.
    assert (await drafter.propose(context, 9)).tokens == [3, 4, 5, 6, 1, 2, 3, 4, 5]


async def test_chain_follows_what_it_predicted_and_not_only_its_last_token() -> None:
    # After 2 alone comes 8, twice; the chain has predicted 5 2 and so goes on with 6.
    context = make_context([5, 2, 6, 2, 8, 2, 8, 4, 5])
    assert (await NgramDrafter().propose(context, 2)).tokens == [2, 6]


async def test_proposal_is_empty_where_nothing_followed_the_newest_token() -> None:
    # The window holds 1 1 4: after the newest token nothing was seen.
    assert (await NgramDrafter(NgramShape(3, (3, 2))).propose(make_context([4, 1, 1, 4]), 3)).tokens == []
    # One token more of window, and 4 was followed by 1 1, and those by the 4 at the end.
    assert (await NgramDrafter(NgramShape(4)).propose(make_context([4, 1, 1, 4]), 3)).tokens == [1, 1, 4]


async def test_proposal_has_ids_only() -> None:
    proposal = await NgramDrafter().propose(make_context([1, 2, 1]), 2)
    assert proposal.tokens == [2, 1]
    assert (proposal.supports, proposal.support_probs) == ([], [])


async def test_no_prediction_and_no_room_are_empty_proposals() -> None:
    drafter = NgramDrafter()
    assert (await drafter.propose(make_context([1, 2, 3]), 4)).tokens == []
    assert (await NgramDrafter().propose(make_context([1, 2, 1]), 0)).tokens == []


async def test_match_counts_the_newest_tokens_seen_together() -> None:
    drafter, context = NgramDrafter(), make_context([1, 2, 3, 4, 1, 2, 3])
    assert await drafter.match(context) == 3
    assert (await drafter.propose(context, 0)).tokens == []
    # 9 3 is new, 3 is not; the tokens chained on it have longer matches.
    decide(context, [9, 3])
    assert await drafter.match(context) == 1
    assert (await drafter.propose(context, 4)).tokens == [9, 3, 9, 3]
    decide(context, [2, 3])
    assert await drafter.match(context) == 2
    decide(context, [8])
    assert await drafter.match(context) == 0


async def test_a_kind_tells_the_length_of_a_match_that_the_orders_have() -> None:
    drafter, context = NgramDrafter(NgramShape(orders=(8, 2))), make_context([*range(1, 10), 7, *range(1, 9)])
    assert await drafter.match(context) == 7
    decide(context, [9, 7, 1, 5])
    # Three were right: 9 by seven tokens, 7 by seven and 1 by seven. Behind 5 there is a match of one token.
    assert [kind for kind, _ in (await drafter.candidates(context, 1), drafter.take_hits())[1]] == [
        (7, 0), (7, 1), (7, 2), (7, 3),
    ]  # fmt: skip
    assert await drafter.candidates(context, 1) == [(1, 0)]


async def test_undecided_tokens_never_enter_the_table() -> None:
    drafter, context = NgramDrafter(), make_context([1, 2, 3, 1])
    for _ in range(5):
        assert (await drafter.propose(context, 3)).tokens == [2, 3, 1]
    # All three were rejected: 1 -> 2 was seen once so far, 1 -> 7 has become the more recent.
    decide(context, [7])
    drafter.truncate(len(context) - 1)
    decide(context, [1])
    assert (await drafter.propose(context, 1)).tokens == [7]


@pytest.mark.parametrize("orders", ORDERS)
@pytest.mark.parametrize("window", [8, 40, 4096])
async def test_rounds_of_any_length_count_as_one_pass_over_the_context(window: int, orders: tuple[int, ...]) -> None:
    rng = random.Random(window)
    drafter, context = NgramDrafter(NgramShape(window, orders)), make_context([rng.randrange(3) for _ in range(50)])
    for _ in range(60):
        proposal = await drafter.propose(context, 4)
        expected: list[int] = []
        tail = context.tokens[-7:]
        while len(expected) < 4 and (prediction := brute_force(context.tokens[-window:], tail, orders)) is not None:
            expected.append(prediction.token)
            tail = [*tail, prediction.token][-7:]
        assert proposal.tokens == expected
        # A predicted token has a continuation itself, whatever orders there are.
        assert len(expected) in (0, 4)
        decide(context, [rng.randrange(3) for _ in range(rng.randint(1, 9))])
        drafter.truncate(len(context) - 1)


async def test_long_prompt_gives_others_their_turn_and_is_counted_whole() -> None:
    prompt = [1, 2, 3, *range(100, 100 + 4 * CHUNK_TOKENS), 1, 2, 3]
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    drafter = NgramDrafter()
    proposal = await drafter.propose(make_context(prompt), 2)
    task.cancel()
    assert proposal.tokens == [100, 101]
    assert turns >= 4


@pytest.mark.parametrize("num_different", [50_000, 400, 9])
def test_a_table_takes_few_bytes_a_token(num_different: int) -> None:
    """Each running generation has one."""
    coin = random.Random(1)
    tokens = [1000 + coin.randrange(num_different) for _ in range(2 * DEFAULT_SHAPE.window_tokens)]
    tracemalloc.start()
    try:
        table = make_table(tokens)
        num_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(table) > 0
    assert num_bytes / DEFAULT_SHAPE.window_tokens < 250 * len(DEFAULT_SHAPE.orders)
