"""What every style of arguments can do: be learned from a template, write, read, and give a grammar."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from coordinator.tools.call_arguments.lark_rules import LarkRules
from coordinator.tools.call_arguments.reader import ArgumentsReader
from coordinator.tools.call_arguments.schema_types import Schema
from coordinator.tools.json_scanner import Reading

Arguments = dict[str, Any]
# Arguments of the probes: names and texts that stand nowhere else.
KEY, OTHER_KEY = "paceline_ka", "paceline_kb"
TEXT, OTHER_TEXT = "some paceline_va", "other paceline_vb"
HARD_TEXT = "a \"b\" 'c'\n\\d é <e> {f}"
NO_ARGUMENTS: Arguments = {}
ONE_TEXT: Arguments = {KEY: TEXT}
TWO_TEXTS: Arguments = {KEY: TEXT, OTHER_KEY: OTHER_TEXT}
HARD, NUMBER, FRACTION, YES, NO, NULL = ({KEY: each} for each in (HARD_TEXT, 3, 1.5, True, False, None))
OBJECT: Arguments = {KEY: {"x": [1, "y z"], "b": {"u": True, "w": None}}}
ARRAY: Arguments = {KEY: ["p q", 1, False, None, {"r": "é"}]}
# A template may sort the keys, or leave out what is null.
UNSORTED: Arguments = {OTHER_KEY: "1", KEY: "2"}
PROBES = (NO_ARGUMENTS, ONE_TEXT, TWO_TEXTS, UNSORTED, HARD, NUMBER, FRACTION, YES, NO, NULL, OBJECT, ARRAY)


class Sample(NamedTuple):
    """Arguments, and what the template writes from behind a call's name to the end of the calls."""

    arguments: Arguments
    text: str


class Learned(NamedTuple):
    """middle, tail: what stands before and after the arguments."""

    middle: str
    style: "ArgumentsStyle"
    tail: str


class ArgumentsStyle(ABC):
    """A frozen dataclass of the texts that a template writes in and around arguments."""

    __slots__ = ()

    @classmethod
    @abstractmethod
    def learn(cls, samples: Sequence[Sample]) -> Learned | None:
        """Returns the style whose texts these samples of PROBES show, unless it can't be this one.

        It need not be right: a style counts if it writes every sample as the template does.
        """

    @abstractmethod
    def write(self, arguments: Arguments) -> str:
        """Returns the arguments as the template writes them."""

    @abstractmethod
    def read(self, reader: ArgumentsReader, schema: Schema, tail: str) -> Reading[bool]:
        """Reads arguments and emits their JSON as it comes; returns whether they are whole. `tail`: what follows."""

    @abstractmethod
    def grammar(self, schema: Schema, rules: LarkRules, tail: str) -> str:
        """Returns an expression for arguments of a tool's schema."""

    def unenforced(self, schema: Schema) -> list[str]:
        """Returns the places in a tool's schema that the grammar does not enforce, with the reason."""
        return []

    @property
    @abstractmethod
    def marks(self) -> tuple[str, ...]:
        """Returns the texts around keys and values, which may be special tokens."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Returns a few words for people."""


def text_of(samples: Sequence[Sample], arguments: Arguments) -> str:
    return next(each.text for each in samples if each.arguments is arguments)


def common_prefix(first: str, second: str) -> str:
    """Returns how two texts begin alike, without the beginning of a mark in angle brackets."""
    length = next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )
    if length == len(first) or length == len(second):
        # One of them ends here: no mark is divided.
        return first[:length]
    cut = first.rfind("<", 0, length)
    return first[:cut] if cut >= 0 and ">" not in first[cut:length] else first[:length]


def common_suffix(first: str, second: str) -> str:
    """Returns how two texts end alike, without the end of a mark in angle brackets."""
    length = next(
        (at for at, (a, b) in enumerate(zip(first[::-1], second[::-1], strict=False)) if a != b),
        min(len(first), len(second)),
    )
    suffix = first[len(first) - length :]
    if length in (len(first), len(second)):
        return suffix
    cut = suffix.find(">")
    return suffix[cut + 1 :] if cut >= 0 and "<" not in suffix[:cut] else suffix
