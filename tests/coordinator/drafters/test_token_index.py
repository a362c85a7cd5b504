"""The token index: the place where the newest tokens stood before, in bounded memory."""

import random

import pytest

from coordinator.drafters.token_index import END, KEY_TOKENS, MAX_POSITIONS, NOWHERE, TokenIndex


def index_of(*tokens: int, capacity: int = 1024) -> TokenIndex:
    index = TokenIndex(capacity)
    index.extend(tokens)
    return index


def test_the_place_is_behind_the_tokens_that_agree() -> None:
    index = index_of(1, 2, 3, 4, 5)
    assert index.find([9, 2, 3]) == (2, 3)
    assert index.token_at(3) == 4
    assert index.find([1, 2, 3, 4]) == (4, 4)


def test_the_longest_agreement_wins_and_of_equal_ones_the_newest() -> None:
    index = index_of(7, 1, 2, 50, 8, 1, 2, 51, 9, 1, 2, 52)
    assert index.token_at(index.find([8, 1, 2])[1]) == 51
    assert index.token_at(index.find([0, 1, 2])[1]) == 52


def test_what_has_no_end_yet_is_no_place() -> None:
    index = index_of(1, 2, 3, 1, 2)
    assert index.find([1, 2]) == (2, 2)
    assert index_of(1, 2).find([1, 2]) == (0, NOWHERE)


@pytest.mark.parametrize("newest", [[], [2], [3, 2], [6, 7]], ids=str)
def test_fewer_tokens_than_a_key_or_unseen_ones_are_nowhere(newest: list[int]) -> None:
    assert index_of(1, 2, 3, 4).find(newest) == (0, NOWHERE)
    assert TokenIndex(KEY_TOKENS).find(newest) == (0, NOWHERE)


def test_texts_are_apart() -> None:
    index = index_of(1, 2, END, 3, 4, 5)
    assert index.token_at(2) == END
    assert index.find([2, 3, 4]) == (2, 5)
    assert index.token_at(-1) == index.token_at(6) == END


@pytest.mark.parametrize("capacity", [2, 3, 7, 64, 100])
def test_in_a_full_ring_it_finds_what_a_search_through_the_newest_tokens_finds(capacity: int) -> None:
    random.seed(capacity)
    index, tokens = TokenIndex(capacity), []
    for _ in range(600):
        index.extend([random.randrange(3)])
        tokens.append(int(index.token_at(len(index) - 1)))
        newest = tokens[-4:]
        known = range(max(0, len(tokens) - capacity), len(tokens))
        assert [index.token_at(place) for place in known] == tokens[known.start :]
        agreement, place = index.find(newest)
        # So many tokens before the place agree, none of them forgotten, and no newer place of so many has more.
        assert (agreement == 0) == (place == NOWHERE)
        if agreement:
            assert KEY_TOKENS <= agreement <= len(newest)
            assert place - agreement >= known.start
            assert tokens[place - agreement : place] == newest[len(newest) - agreement :]
            assert place < len(tokens)
        places = [end for end in range(known.start + KEY_TOKENS, len(tokens)) if tokens[end - 2 : end] == newest[-2:]]
        if len(places) <= MAX_POSITIONS // 4:
            # Beside them few others share their hash.
            assert (agreement > 0) == bool(places)


def test_memory_does_not_grow_past_the_capacity() -> None:
    index = index_of(*range(5000), capacity=100)
    sizes = {name: len(value) for name, value in vars(index).items() if hasattr(value, "itemsize")}
    assert max(sizes.values()) == 128
    assert index.find([4997, 4998]) == (2, 4999)
    assert index.find([10, 11]) == (0, NOWHERE)
