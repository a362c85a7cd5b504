"""What is passed on of an answer that is asked for again."""

import pytest

from gateway.replay import ReplayBuffer, Resumption
from paceline.errors import Aborted
from paceline.results import (
    Chunk,
    Completion,
    Finish,
    RoundTrace,
    Speculation,
    Timing,
    TokenLogprobs,
    ToolCall,
    ToolCallDelta,
)

FINISH = Finish("stop", 3, 0, 6, 1, Speculation(2, 4, 4, [], [], 0.0), Timing(0, 0, 0, 0, 0, 0))


def chunk(tokens: list[int], index: int = 0, finish: Finish | None = None) -> Chunk:
    """A round whose token t has the text of t letters."""
    return Chunk(
        text="".join(chr(96 + token) * token for token in tokens),
        token_ids=tokens,
        origins="A" * len(tokens),
        text_lengths=list(tokens),
        index=index,
        logprobs=[TokenLogprobs(-float(token), [], []) for token in tokens],
        prompt_logprobs=[TokenLogprobs(-1.0, [], [])],
        finish=finish,
    )


def delivered(*chunks: Chunk) -> ReplayBuffer:
    found = ReplayBuffer()
    for each in chunks:
        found.add(each)
    return found


def test_rounds_are_cut_where_the_delivered_tokens_end() -> None:
    repetition = Resumption(delivered(chunk([1, 2]), chunk([3])))
    assert repetition.new_part(chunk([1])) is None
    rest = repetition.new_part(chunk([2, 3, 4, 5]))
    assert rest is not None
    assert (rest.token_ids, rest.text, rest.text_lengths, rest.origins) == ([4, 5], "ddddeeeee", [4, 5], "AA")
    assert [each.logprob for each in rest.logprobs] == [-4, -5]
    assert rest.prompt_logprobs == []
    last = repetition.new_part(chunk([6], finish=FINISH))
    assert last is not None
    assert (last.token_ids, last.finish) == ([6], FINISH)


def test_an_end_that_was_not_told_is_told_and_one_that_was_is_not() -> None:
    repetition = Resumption(delivered(chunk([1, 2]), chunk([1, 2], 1, FINISH)))
    end = repetition.new_part(chunk([1, 2], 0, FINISH))
    assert end is not None
    assert (end.token_ids, end.text, end.finish) == ([], "", FINISH)
    assert repetition.new_part(chunk([1, 2], 1, FINISH)) is None


def test_a_choice_of_which_nothing_came_is_whole() -> None:
    known = delivered(chunk([1]))
    repetition = Resumption(known)
    for each in (chunk([7, 8], 1), chunk([9], 1), chunk([6], 1, FINISH)):
        assert repetition.new_part(each) is each
        known.add(each)


@pytest.mark.parametrize("other", [[1, 9], [9]])
def test_other_tokens_end_the_answer(other: list[int]) -> None:
    with pytest.raises(Aborted, match="other tokens"):
        Resumption(delivered(chunk([1, 2, 3]))).new_part(chunk(other))


def test_a_first_answer_is_passed_on_as_it_is() -> None:
    known = ReplayBuffer()
    repetition = Resumption(known)
    for each in (chunk([1, 2]), chunk([3]), chunk([4], 0, FINISH)):
        assert repetition.new_part(each) is each
        known.add(each)


def test_drafts_for_the_repetition_are_the_longest_unfinished_choice() -> None:
    assert ReplayBuffer().prediction is None
    assert delivered(chunk([1], 0), chunk([2, 3], 1), chunk([4, 5, 6], 2, FINISH)).prediction == [2, 3]


def test_a_round_that_is_cut_has_no_trace() -> None:
    trace = RoundTrace(
        round=1, drafter="none", reason="", draft_tokens=0, proposed=[], num_accepted=0, entropies=[],
        smoothed_entropies=[], allowed_draft_tokens=[], draft_us=0, target_us=0, queued_us=0, rpc_us=0,
    )  # fmt: skip
    repetition = Resumption(delivered(chunk([1])))
    cut = repetition.new_part(Chunk("abb", [1, 2], "AA", [1, 2], trace=trace))
    whole = repetition.new_part(Chunk("ccc", [3], "A", [3], trace=trace))
    assert cut is not None
    assert cut.trace is None
    assert whole is not None
    assert whole.trace is trace


# What each token of an answer brings of its calls.
CALLS = [
    [ToolCallDelta(0, "call_0", "add")], [ToolCallDelta(0, arguments='{"a"')], [], [ToolCallDelta(0, arguments=": 11}")],
    [ToolCallDelta(1, "call_1", "add"), ToolCallDelta(1, arguments="{")], [ToolCallDelta(1, arguments="}")], [],
]  # fmt: skip
REASONING = ["Two ", "", "and", " two.", "", "", ""]
WHOLE = [ToolCall("call_0", "add", '{"a": 11}'), ToolCall("call_1", "add", "{}")]


def calling(first: int, end: int) -> Chunk:
    """A round of the tokens of these places, and the end of the answer with the last of them."""
    finish = FINISH if end == len(CALLS) else None
    deltas = [delta for each in CALLS[first:end] for delta in each]
    return Chunk(
        "", list(range(first, end)), "A" * (end - first), [0] * (end - first), tool_calls=deltas, finish=finish,
        reasoning="".join(REASONING[first:end]),
    )  # fmt: skip


@pytest.mark.parametrize("delivered_tokens", range(1, len(CALLS) + 1))
@pytest.mark.parametrize("size", range(1, len(CALLS) + 1))
def test_reasoning_and_calls_go_on_where_they_were_cut_and_no_part_comes_twice(
    delivered_tokens: int, size: int
) -> None:
    """Twice: the second coordinator goes away as well."""
    known, client = ReplayBuffer(), Completion()
    rounds = [(at, min(at + size, len(CALLS))) for at in range(0, len(CALLS), size)]
    for attempt in ([(0, delivered_tokens)], rounds[:-1], rounds):
        repetition = Resumption(known)
        for each in attempt:
            if (rest := repetition.new_part(calling(*each))) is not None:
                known.add(rest)
                client.add(rest)
                assert all(delta.id or delta.arguments for delta in rest.tool_calls)
    assert client.tool_calls == WHOLE
    assert client.reasoning == "".join(REASONING)
    assert client.token_ids == list(range(len(CALLS)))
    assert client.finish == FINISH
