"""A grammar that ends or exhausts its compiler is refused in words, and concerns nobody else."""

import asyncio
import contextlib
import itertools
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from llguidance import LLMatcher

from coordinator import trial_process
from coordinator.format_grammars import make_grammar
from coordinator.grammars import Grammars
from coordinator.trials import MAX_RUNNING, Part
from coordinator.turns import RoundRobin
from paceline.errors import InvalidArgument
from paceline.grammar import make_tokenizer
from paceline.keys import private_salt
from paceline.output_format import OutputFormat
from paceline.rpc.metadata import caller
from tests.hostile.grammars import KILLERS
from tests.thinking import EOS_ID, make_backend

BYTES = make_backend(has_special_marks=False)


@pytest.fixture
async def grammars() -> AsyncIterator[Grammars]:
    made = Grammars(BYTES.to_str().encode(), BYTES.get_vocab_size(), [EOS_ID])
    yield made
    made.close()


def slow_text(number: int) -> str:
    """Returns one of many grammars that take all the time that a trial has."""
    return f"{KILLERS['multiple of a large number']['grammar']}\n# {number}\n"


def text_of(case: dict[str, Any]) -> str:
    """A schema stays as it is: what is left out before compiling may be what ends the compiler."""
    ((kind, value),) = case.items()
    if kind == "json_schema":
        return str(LLMatcher.grammar_from_json_schema(json.dumps(value)))
    return make_grammar(OutputFormat(**{kind: value}))


@pytest.mark.parametrize(("name", "words"), [
    ("chain of references", "exhausts the compiler's stack"), ("least integer", "exhausts the compiler's stack"),
    ("chain of rules", "exhausts the compiler's stack"), ("optional letters", "takes more than"), ("nested repeats", "takes more than"),
    ("multiple of a large number", "takes more than"),
])  # fmt: skip
async def test_a_grammar_that_ends_its_compiler_is_refused_in_words(grammars: Grammars, name: str, words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        await grammars.compile(text_of(KILLERS[name]))
    assert (await grammars.compile("start: /a/")).guide().is_over([]) is False


async def test_a_short_trial_does_not_wait_for_long_ones(grammars: Grammars) -> None:
    await grammars.compile("start: /first/")
    ended = list[str]()

    async def compile_it(name: str, text: str) -> None:
        with contextlib.suppress(InvalidArgument):
            await grammars.compile(text)
        ended.append(name)

    slow = [slow_text(number) for number in range(MAX_RUNNING - 1)]
    async with asyncio.TaskGroup() as group:
        for text in slow:
            group.create_task(compile_it("slow", text))
        await asyncio.sleep(0)
        group.create_task(compile_it("short", "start: /short/"))
    assert ended == ["short", *["slow"] * len(slow)]


async def test_clients_that_leave_end_their_trials(grammars: Grammars) -> None:
    """Their turns are others' at once."""
    await grammars.compile("start: /first/")
    texts = [slow_text(number) for number in range(3 * MAX_RUNNING)]
    left = [asyncio.create_task(grammars.compile(text)) for text in texts]
    await asyncio.sleep(0)
    for task in left:
        task.cancel()
    # Not one of them was tried to its end.
    assert all(isinstance(each, asyncio.CancelledError) for each in await asyncio.gather(*left, return_exceptions=True))
    await grammars.compile("start: /a/")
    assert grammars._turns._num_free == MAX_RUNNING


async def test_a_process_that_was_killed_is_replaced(grammars: Grammars) -> None:
    await grammars.compile("start: /a/")
    running = grammars._trials._running
    assert running is not None
    running.process.kill()
    assert await grammars.compile("start: /b/")


async def test_requests_that_see_a_process_end_leave_the_next_one_alone(grammars: Grammars) -> None:
    """Each ends the process that it has used, at any time."""
    await grammars.compile("start: /a/")
    trials = grammars._trials
    used = trials._running
    assert used is not None
    ended, exchange, first = asyncio.Event(), trials._exchange, list[object]()

    async def late(running: Any, request: bytes) -> bytes:
        """Answers nothing to the first two requests; the second learns it when the next process has answered."""
        if running is not used:
            return await exchange(running, request)
        first.append(running)
        if len(first) == 2:
            await ended.wait()
        return b""

    trials._exchange = late  # type: ignore[method-assign]
    early, delayed = (asyncio.create_task(grammars.compile(f"start: /{each}/")) for each in "bc")
    await early
    replaced = trials._running
    assert replaced is not None
    assert replaced is not used
    ended.set()
    await delayed
    assert trials._running is replaced
    assert replaced.process.poll() is None


@pytest.mark.parametrize("order", list(itertools.permutations(("woken", "control", "left"))))
def test_what_was_ready_of_a_trial_does_not_end_one_that_gets_its_descriptor(
    order: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    control, client = socket.socketpair()
    trials = trial_process._Trials(control, cast(Any, None))
    descriptors, killed, now = {"control": control.fileno(), "left": 999}, list[str](), ["old"]
    begun, batches = list[bool](), iter([order, ["control"]])

    def set_wakeup_fd(wake: int, **_: bool) -> None:
        os.write(wake, b"s")

    class Poll:
        def register(self, descriptor: int, _: int) -> None:
            if descriptor != control.fileno():
                descriptors["woken"] = descriptor

        def poll(self) -> list[tuple[int, int]]:
            return [(descriptors[name], 1) for name in next(batches)]

    def begin() -> bool:
        if now == [""]:
            now[:] = ["new"]
        begun.append(True)
        return len(begun) < 2

    monkeypatch.setattr(signal, "set_wakeup_fd", set_wakeup_fd)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    trials._poll.close()
    trials._poll = cast(Any, Poll())
    monkeypatch.setattr(trials, "_begin", begin)
    monkeypatch.setattr(trials, "_reap", lambda: now.__setitem__(0, ""))
    monkeypatch.setattr(trials, "_kill", lambda _: killed.append(now[0]))
    with control, client:
        trials.serve()
    os.close(descriptors["woken"])
    assert killed == ["old"]


async def test_a_grammar_counts_with_the_memory_that_it_takes(grammars: Grammars) -> None:
    small = await grammars.compile("start: /a/")
    large = await grammars.compile(text_of({"json_schema": {"enum": list(range(20_000))}}))
    assert large.num_bytes > 10 * small.num_bytes


async def test_an_error_names_its_part(grammars: Grammars) -> None:
    """See `tests/coordinator/tools/test_call_grammar.py` for tools."""
    with pytest.raises(InvalidArgument, match="begins with 6000 tokens of fixed text") as error:
        await grammars.compile(make_grammar(OutputFormat(choice=("abc" * 2000,))))
    assert (error.value.field, error.value.allowed) == ("format", "at most 4096 tokens")


def properties(count: int) -> str:
    names = {f"p{at}": {"type": "string"} for at in range(count)}
    return make_grammar(OutputFormat.of_schema({"type": "object", "properties": names, "additionalProperties": False}))


async def test_a_limit_that_the_first_tokens_meet_is_met_by_the_trial(grammars: Grammars) -> None:
    with pytest.raises(InvalidArgument, match="reaches a limit within a few tokens"):
        await grammars.compile(properties(510))


async def test_an_object_of_many_optional_properties_can_be_written(grammars: Grammars) -> None:
    guide = (await grammars.compile(properties(490))).guide()
    text = BYTES.encode('{"p1": "a", "p2": "b", "p480": "c"}').ids
    assert all(guide.may_follow(text[:at], token) for at, token in enumerate(text))


def test_a_grammar_whose_tokens_cost_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, so that the limit can be one that any processor exceeds."""
    tokenizer = make_tokenizer(BYTES.to_str().encode(), BYTES.get_vocab_size(), [EOS_ID])
    assert "problem" not in trial_process._run(tokenizer, "start: /a+/", ())
    monkeypatch.setattr(trial_process, "MAX_MASK_S", 0.0)
    refused = trial_process._run(tokenizer, "start: /a+/", ())
    assert refused["problem"] == "takes more than 0 ms for a token"


async def test_those_that_wait_take_turns_by_owner() -> None:
    turns, order = RoundRobin(1), list[str]()

    async def take(owner: str) -> None:
        async with turns.of(owner):
            order.append(owner)
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for owner in ("a", "a", "a", "a", "b", "c", "b"):
            group.create_task(take(owner))
    assert order == ["a", "a", "b", "c", "a", "b", "a"]


async def test_one_key_with_many_salts_delays_no_other(grammars: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    order = list[str]()

    async def run(text: str, parts: Sequence[Part] = ()) -> int:
        order.append(text[-3:-1])
        await asyncio.sleep(0)
        return 0

    async def compile_it(owner: str, number: int) -> None:
        caller.set(owner)
        await grammars.compile(f"start: /{owner}{number}/", private_salt(owner, f"salt {number}"))

    monkeypatch.setattr(grammars._trials, "run", run)
    monkeypatch.setattr(grammars, "_turns", RoundRobin(1))
    async with asyncio.TaskGroup() as group:
        for number in range(4):
            group.create_task(compile_it("a", number))
        group.create_task(compile_it("b", 0))
    assert order == ["a0", "a1", "b0", "a2", "a3"]


async def test_a_turn_that_comes_to_one_who_leaves_is_passed_on() -> None:
    turns = RoundRobin(1)
    async with turns.of("a"):
        waiting = [asyncio.create_task(turns.of("b").__aenter__()) for _ in range(2)]
        await asyncio.sleep(0)
    waiting[0].cancel()
    await asyncio.wait(waiting)
    assert [task.cancelled() for task in waiting] == [True, False]
