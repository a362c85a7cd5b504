"""Commands and their answers."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.scheduling.job import Job
from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class Command:
    """One command for one sequence. Its answer has the same `command_id`."""

    command_id: int
    sequence_id: int


@dataclass(frozen=True, slots=True)
class Open(Command):
    options: SequenceOptions


@dataclass(frozen=True, slots=True)
class Start(Command):
    """Starts a job at `position`, which must be the cache's length.

    The job feeds `tail` and up to `num_more` tokens. An empty sequence may take up to `num_reusable` of them from
    cached blocks; `make_job` gets the rest.
    """

    position: int
    tail: list[int]
    num_more: int
    num_reusable: int
    make_job: Callable[[Sequence, list[int]], Job]
    # Returns what the server goes on with by itself once this command's job is done, if it does, with the suggested drafts that
    # continue it. It may be asked again, for others.
    follow: "Callable[[Any, Start, Suggest], Start | None] | None" = field(default=None, kw_only=True)
    # When the command arrived (time.perf_counter). It may wait for a step in progress before it runs.
    arrived_s: float = field(default_factory=time.perf_counter, kw_only=True)


def _no_job(sequence: Sequence, tail: list[int]) -> Job:
    raise AssertionError("a sequence without a command has no job")


NO_START = Start(0, 0, 0, [], 0, 0, _no_job)


@dataclass(frozen=True, slots=True)
class Fork(Command):
    """Gives a newly opened sequence the first `length` tokens of another. Not answered on success."""

    parent_id: int
    length: int


@dataclass(frozen=True, slots=True)
class Suggest(Command):
    """What the context may have from `position` on, for the rounds that the server goes on with. Not answered."""

    position: int
    tokens: list[int]
    # The round in progress is the last one.
    is_last: bool = False

    def behind(self, tokens: list[int], length: int, newest: int) -> list[int]:
        """Returns what follows the first `length` tokens and the newest one; nothing if it expected others."""
        if not self.position <= length < self.position + len(self.tokens):
            return []
        known = [*tokens[self.position : length], newest]
        return self.tokens[len(known) :] if self.tokens[: len(known)] == known else []


NO_SUGGESTION = Suggest(0, 0, 0, [])


@dataclass(frozen=True, slots=True)
class Truncate(Command):
    length: int


@dataclass(frozen=True, slots=True)
class Release(Command):
    """Forgets the sequence, after reading `tail` at `position` for requests that continue it."""

    position: int = 0
    tail: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Refuse(Command):
    """A command already found invalid, which fails in its turn."""

    error: PacelineError


@dataclass(frozen=True, slots=True)
class OpenAck:
    """Answer to Open."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A command's result, or its error with the cache's length if the sequence is known."""

    command_id: int
    result: Any
    cache_length: int | None = None
    # Whether the server goes on by itself, and another answer follows.
    has_more: bool = False
