"""Stop strings are found as by reading the whole text again with every piece, and their number costs nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.stop_strings import NOTHING, StopStrings
from paceline.sampling_params import MAX_STOP_CHARACTERS, MAX_STOP_STRINGS


class WholeText:
    """The definition: what may begin a stop string is held back, and the first that is whole ends the text."""

    def __init__(self, stop: list[str]) -> None:
        self.stop, self.held = stop, ""

    def push(self, piece: str) -> tuple[str, str]:
        text = self.held + piece
        found = [(at, each) for each in self.stop if (at := text.find(each)) >= 0]
        if found:
            at, stop = min(found)
            return text[:at], stop
        keep = max(n for each in self.stop for n in range(len(each)) if text.endswith(each[:n]))
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], ""


class Automaton:
    def __init__(self, stop: list[str]) -> None:
        self.strings, self.state, self.held = StopStrings(stop), NOTHING, ""

    def push(self, piece: str) -> tuple[str, str]:
        self.state, start, found = self.strings.read(self.state, piece)
        text = self.held + piece
        if found:
            return text[: len(self.held) + start], found
        keep = self.strings.num_held(self.state)
        self.held = text[len(text) - keep :]
        return text[: len(text) - keep], ""


letters = st.text("ab", min_size=1, max_size=6)


@given(st.lists(letters, min_size=1, max_size=8), st.lists(st.text("abc", max_size=5), max_size=12))
def test_any_split_of_any_text_gives_what_the_definition_gives(stop: list[str], pieces: list[str]) -> None:
    automaton, definition = Automaton(stop), WholeText(stop)
    for piece in pieces:
        said = automaton.push(piece)
        assert said == definition.push(piece)
        if said[1]:
            break


def test_a_stop_string_that_was_passed_over_is_not_found_later() -> None:
    strings = StopStrings(["b", "abc", "bd"])
    state, _, found = strings.read(NOTHING, "ab")
    assert (found, strings.num_held(state)) == ("b", 2)
    assert strings.read(state, "d") == (strings.read(NOTHING, "bd")[0], -1, "bd")
    assert strings.read(state, "x")[2] == ""


@pytest.mark.parametrize("num_strings", [1, MAX_STOP_STRINGS])
def test_a_character_costs_the_same_with_one_stop_string_as_with_many(
    num_strings: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_steps, follow = 0, StopStrings._next

    def count(self: StopStrings, state: int, character: str) -> int:
        nonlocal num_steps
        num_steps += 1
        return follow(self, state, character)

    strings = StopStrings([f"{'a' * (MAX_STOP_CHARACTERS - 3)}b{at:02}" for at in range(num_strings)])
    monkeypatch.setattr(StopStrings, "_next", count)
    text, state = ("a" * (MAX_STOP_CHARACTERS - 3) + "c") * 4 + "a" * 2 * MAX_STOP_CHARACTERS, NOTHING
    for character in text:
        state, _, found = strings.read(state, character)
        assert not found
        strings.num_held(state)
    assert num_steps < 3 * len(text)
