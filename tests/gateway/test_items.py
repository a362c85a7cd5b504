"""An answer as items, however its rounds are cut."""

import json
from itertools import pairwise

import hypothesis.strategies as st
from hypothesis import given, settings

from gateway.items import Item, ItemDelta, ItemDone, Items, ItemStarted, Kind, Step
from paceline.results import Chunk, ToolCallDelta
from tests.gateway.scripted import chunk, end


@st.composite
def answers(draw: st.DrawFn) -> list[Chunk]:
    """Rounds of reasoning, then texts and calls in any order, cut anywhere and sometimes told together."""
    rounds = [chunk(reasoning=each) for each in draw(st.lists(st.text(min_size=1, max_size=3), max_size=3))]
    num_calls = 0
    for is_call in draw(st.lists(st.booleans(), max_size=5)):
        if not is_call:
            rounds += map(chunk, draw(st.lists(st.text(min_size=1, max_size=3), min_size=1, max_size=3)))
            continue
        arguments = json.dumps({"a": draw(st.text(max_size=5))})
        cut = draw(st.integers(1, len(arguments) - 1))
        pieces = arguments[:cut], arguments[cut:]
        rounds.append(chunk(calls=(ToolCallDelta(num_calls, f"call_{num_calls}", "add"),)))
        rounds += (chunk(calls=(ToolCallDelta(num_calls, arguments=each),)) for each in pieces)
        num_calls += 1
    joined: list[Chunk] = []
    for each in rounds:
        if joined and draw(st.booleans()):
            last = joined.pop()
            each = chunk(last.text + each.text, (*last.tool_calls, *each.tool_calls), last.reasoning + each.reasoning)
        joined.append(each)
    return [*joined, chunk(finish=end(draw(st.sampled_from(("stop", "length", "tool_calls")))))]


@settings(deadline=None)
@given(answers())
def test_items_keep_their_promises(rounds: list[Chunk]) -> None:
    items = Items()
    steps = [step for each in rounds for step in items.read(each)]
    is_open: Item | None = None
    grown: dict[int, str] = {}
    for step in steps:
        match step:
            case ItemStarted(item):
                assert is_open is None
                assert item.index == len(grown)
                assert bool(item.name and item.call_id) == (item.kind is Kind.CALL)
                is_open, grown[item.index] = item, ""
            case ItemDelta(item, text):
                assert is_open is item
                assert text
                grown[item.index] += text
            case ItemDone(item):
                assert is_open is item
                is_open = None
    assert is_open is None
    assert [each.text for each in items.all] == list(grown.values())
    assert [each.call_index for each in items.of(Kind.CALL)] == list(range(len(list(items.of(Kind.CALL)))))
    assert not any(a.kind is b.kind is not Kind.CALL for a, b in pairwise(items.all))


@settings(deadline=None)
@given(answers())
def test_nothing_is_lost_or_told_to_another_item(rounds: list[Chunk]) -> None:
    items = Items()
    for each in rounds:
        items.read(each)
    assert "".join(each.text for each in items.of(Kind.TEXT)) == "".join(each.text for each in rounds)
    assert "".join(each.text for each in items.of(Kind.REASONING)) == "".join(each.reasoning for each in rounds)
    told: dict[int, str] = {}
    for delta in (delta for each in rounds for delta in each.tool_calls):
        told[delta.index] = told.get(delta.index, "") + delta.arguments
    assert [each.text for each in items.of(Kind.CALL)] == list(told.values())


def steps_of(*rounds: Chunk) -> list[Step]:
    items = Items()
    return [step for each in rounds for step in items.read(each)]


def test_what_an_open_call_lacks_comes_before_text() -> None:
    first = chunk(calls=(ToolCallDelta(0, "call_0", "add"), ToolCallDelta(0, arguments="{")))
    both = chunk("Done.", (ToolCallDelta(0, arguments="}"), ToolCallDelta(1, "call_1", "add")))
    kinds = [(type(step), step.item.index) for step in steps_of(first, both)]
    assert kinds == [
        (ItemStarted, 0), (ItemDelta, 0), (ItemDelta, 0), (ItemDone, 0), (ItemStarted, 1), (ItemDelta, 1), (ItemDone, 1), (ItemStarted, 2),
    ]  # fmt: skip


def test_an_item_is_whole_unless_the_answer_was_cut_within_it() -> None:
    for reason, is_whole in (("stop", True), ("length", False)):
        items = Items()
        items.read(chunk("x", (ToolCallDelta(0, "call_0", "add"),)))
        items.read(chunk(finish=end(reason)))
        assert [each.is_whole for each in items.all] == [True, is_whole]
