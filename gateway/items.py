"""Splits an answer into items: reasoning, texts and calls.

Whatever the rounds, one item is open at a time: it is closed before the next opens, a call's id and name come before its
arguments, and the deltas of an item add up to the whole. APIs only spell the steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from paceline.results import Chunk


class Kind(Enum):
    REASONING, TEXT, CALL = "reasoning", "text", "call"


@dataclass(slots=True)
class Item:
    kind: Kind
    # Among all items of the answer, and among its calls.
    index: int
    call_index: int = 0
    # Of a call, as the coordinator made them: they are the same after a failover.
    call_id: str = ""
    name: str = ""
    # What is known of the reasoning, the text or the arguments.
    text: str = ""
    # False while it grows, and if the answer was cut within it.
    is_whole: bool = False


class ItemStarted(NamedTuple):
    item: Item


class ItemDelta(NamedTuple):
    item: Item
    new_text: str


class ItemDone(NamedTuple):
    item: Item


Step = ItemStarted | ItemDelta | ItemDone


class Items:
    """Reads one sample's rounds."""

    def __init__(self) -> None:
        self.all: list[Item] = []
        self._num_calls = 0
        # The last item, while it grows.
        self._open: Item | None = None

    def read(self, chunk: Chunk) -> list[Step]:
        steps: list[Step] = []
        if chunk.reasoning:
            steps += self._grow(Kind.REASONING, chunk.reasoning)
        # A round does not say how its text and its calls alternate. What an open call lacks was written before any text.
        rest = iter(chunk.tool_calls)
        later = None
        for later in rest:
            if later.index >= self._num_calls:
                break
            steps += self._grow(Kind.CALL, later.arguments)
            later = None
        if chunk.text:
            steps += self._grow(Kind.TEXT, chunk.text)
        for delta in () if later is None else (later, *rest):
            if delta.index >= self._num_calls:
                steps += self._begin(Kind.CALL, delta.id, delta.name)
            if delta.arguments:
                steps += self._grow(Kind.CALL, delta.arguments)
        if chunk.finish is not None:
            steps += self._close(is_whole=chunk.finish.reason != "length")
        return steps

    def of(self, kind: Kind) -> Iterator[Item]:
        return (each for each in self.all if each.kind is kind)

    def _grow(self, kind: Kind, new_text: str) -> Iterator[Step]:
        if self._open is None or self._open.kind is not kind:
            yield from self._begin(kind)
        assert self._open is not None
        self._open.text += new_text
        yield ItemDelta(self._open, new_text)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> Iterator[Step]:
        yield from self._close()
        self._open = Item(kind, len(self.all), self._num_calls, call_id, name)
        self._num_calls += kind is Kind.CALL
        self.all.append(self._open)
        yield ItemStarted(self._open)

    def _close(self, is_whole: bool = True) -> Iterator[Step]:
        if self._open is not None:
            self._open.is_whole = is_whole
            yield ItemDone(self._open)
            self._open = None
