"""The suffix drafter: copies from where most of the newest tokens stood before."""

import random

import pytest

from coordinator.context import Context
from coordinator.drafters.suffix import SuffixDrafter
from coordinator.drafters.token_index import END, MAX_SALTS, PART_TOKENS, SuffixCache, TokenIndex
from tests.coordinator.contexts import decide, make_context

TEXT = list(range(100, 200))


def after(output: list[int], prompt: list[int] | None = None) -> Context:
    context = make_context(prompt or [900, 901])
    decide(context, output)
    return context


def recent(*texts: list[int]) -> TokenIndex:
    index = TokenIndex(1024)
    for text in texts:
        index.extend([*text, END])
    return index


async def proposed(context: Context, known: TokenIndex | None = None, most: int = 4) -> list[int]:
    return (await SuffixDrafter(known).propose(context, most)).tokens


async def test_it_copies_from_the_prompt_from_the_output_and_from_recent_answers() -> None:
    assert await proposed(after([100, 101], prompt=TEXT)) == [102, 103, 104, 105]
    assert await proposed(after([*TEXT, 7, 100, 101])) == [102, 103, 104, 105]
    assert await proposed(after([100, 101]), recent(TEXT)) == [102, 103, 104, 105]
    assert await proposed(after([100, 101])) == []


async def test_the_longest_agreement_decides_between_texts() -> None:
    own = [50, 51, 52, 1, 2, 3]
    assert await proposed(after([51, 52], prompt=own), recent([50, 51, 52, 9])) == [1, 2, 3, 51]
    assert await proposed(after([50, 51, 52], prompt=[51, 52, 1]), recent([50, 51, 52, 9, 8])) == [9, 8]


async def test_a_copy_ends_with_its_text() -> None:
    assert await proposed(after([100, 101]), recent([100, 101, 102], TEXT[50:])) == [102]


async def test_what_repeats_itself_is_copied_from_the_copy() -> None:
    assert await proposed(after([1, 2, 3, 1, 2]), most=8) == [3, 1, 2, 3, 1, 2, 3, 1]
    assert await proposed(after([5, 5, 5]), most=3) == [5, 5, 5]


async def test_behind_a_token_that_was_replaced_it_goes_on_once_a_token_agrees() -> None:
    drafter, known = SuffixDrafter(recent(TEXT)), TEXT[:10]
    context = after(known)
    assert (await drafter.propose(context, 2)).tokens == [110, 111]
    decide(context, [7])
    assert (await drafter.propose(context, 2)).tokens == []
    decide(context, [111])
    assert (await drafter.propose(context, 2)).tokens == [112, 113]


async def test_it_stands_at_the_same_place_however_rounds_divide_the_tokens() -> None:
    random.seed(3)
    output = [random.randrange(6) for _ in range(300)]
    known = recent([random.randrange(6) for _ in range(300)])
    whole = await proposed(after(output), known, most=16)
    drafter, context, at = SuffixDrafter(known), after(output[:1]), 1
    while at < len(output):
        await drafter.propose(context, 3)
        num = random.randrange(1, 6)
        decide(context, output[at : at + num])
        at += num
    assert (await drafter.propose(context, 16)).tokens == whole


async def test_hits_tell_by_kind_whether_it_was_right() -> None:
    drafter = SuffixDrafter(recent(TEXT))
    context = after([100, 101])
    assert await drafter.candidates(context, 3) == [("recent", 2), ("recent", 2), ("recent", 3)]
    assert drafter.take_hits() == []
    decide(context, [102, 103, 7])
    await drafter.candidates(context, 3)
    assert drafter.take_hits() == [(("recent", 2), True), (("recent", 2), True), (("recent", 3), False)]


async def test_a_proposal_says_who_made_it_and_is_no_longer_than_asked() -> None:
    drafter = SuffixDrafter(None)
    context = after([100, 101], prompt=TEXT)
    proposal = await drafter.propose(context, 3)
    assert (proposal.report.drafter, proposal.supports, len(proposal.tokens)) == ("suffix", [], 3)
    assert (await drafter.propose(context, 0)).tokens == []


async def test_requests_with_one_salt_share_their_answers_and_no_others() -> None:
    answers = SuffixCache(capacity=1024)
    await answers.add("a", TEXT)
    assert await proposed(after([100, 101]), answers.of("a")) == [102, 103, 104, 105]
    for salt in ("", "b", "A"):
        assert await proposed(after([100, 101]), answers.of(salt)) == []


async def test_the_salt_that_was_used_last_long_ago_is_forgotten() -> None:
    answers = SuffixCache(capacity=16)
    await answers.add("first", [1, 2, 3])
    await answers.add("second", [1, 2, 3])
    for number in range(MAX_SALTS - 2):
        answers.of(str(number))
    answers.of("first")
    answers.of("one more")
    assert len(answers.of("first")) == 4
    assert len(answers.of("second")) == 0


@pytest.mark.parametrize("length", [3, PART_TOKENS, PART_TOKENS + 3, 5 * PART_TOKENS])
async def test_a_long_answer_is_remembered_up_to_its_end(length: int) -> None:
    answers = SuffixCache(capacity=2 * PART_TOKENS)
    await answers.add("", range(length))
    assert await proposed(after([length - 3, length - 2]), answers.of("")) == [length - 1]
