"""Finds stop strings in a text as it comes: an automaton (Aho and Corasick 1975), whose time does not depend on their number.

A state is the longest suffix of the text that begins a stop string. Most states have one successor, the next number: all of
them take a few bytes a character.
"""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence

NOTHING = 0


class StopStrings:
    def __init__(self, stop: Sequence[str]) -> None:
        """`stop`: none is empty."""
        # By state: the character that leads to it from the state before; "" if it does not follow that one.
        self._characters = [""]
        # By state: successors that are not the next number.
        self._branches: dict[int, dict[str, int]] = {}
        self._depths = array("i", [0])
        self._ends = {self._insert(each): each for each in stop}
        # The longest proper suffix that is a state too.
        self._suffixes = array("i", bytes(4 * len(self._depths)))
        # The longest suffix, itself included, that is a stop string; NOTHING if none is.
        self._found = array("i", bytes(4 * len(self._depths)))
        self._link()
        self._firsts = {each[0] for each in stop}

    def read(self, state: int, text: str) -> tuple[int, int, str]:
        """Returns the state after `text`, and the first stop string that `text` completes, with its beginning's offset.

        The offset counts from the beginning of `text` and is negative for what came before. Of stop strings with the same
        beginning, the shortest is returned; "" without one.
        """
        if state == NOTHING and self._firsts.isdisjoint(text):
            return NOTHING, 0, ""
        first, found = len(text), ""
        for at, character in enumerate(text, start=1):
            state = self._after(state, character)
            if (end := self._found[state]) and at - self._depths[end] < first:
                first, found = at - self._depths[end], self._ends[end]
        return state, first, found

    def num_held(self, state: int) -> int:
        """Returns how many of the text's last characters may begin a stop string."""
        # A stop string that begins no other one may be here, if the text was not to end with it.
        while state != NOTHING and next(self._successors(state), None) is None:
            state = self._suffixes[state]
        return self._depths[state]

    def _insert(self, text: str) -> int:
        state = NOTHING
        for at, character in enumerate(text, start=1):
            if (following := self._next(state, character)) == NOTHING:
                following = len(self._depths)
                is_chained = following == state + 1
                self._characters.append(character if is_chained else "")
                if not is_chained:
                    self._branches.setdefault(state, {})[character] = following
                self._depths.append(at)
            state = following
        return state

    def _link(self) -> None:
        """Goes through the states by depth."""
        waiting = deque([NOTHING])
        while waiting:
            state = waiting.popleft()
            for character, following in self._successors(state):
                if state != NOTHING:
                    self._suffixes[following] = self._after(self._suffixes[state], character)
                self._found[following] = (
                    following if following in self._ends else self._found[self._suffixes[following]]
                )
                waiting.append(following)

    def _successors(self, state: int) -> Iterator[tuple[str, int]]:
        if state + 1 < len(self._characters) and self._characters[state + 1]:
            yield self._characters[state + 1], state + 1
        yield from self._branches.get(state, {}).items()

    def _next(self, state: int, character: str) -> int:
        if state + 1 < len(self._characters) and self._characters[state + 1] == character:
            return state + 1
        return self._branches[state].get(character, NOTHING) if state in self._branches else NOTHING

    def _after(self, state: int, character: str) -> int:
        while (following := self._next(state, character)) == NOTHING and state != NOTHING:
            state = self._suffixes[state]
        return following
