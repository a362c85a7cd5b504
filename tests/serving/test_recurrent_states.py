"""A server that gave up a recurrent state says how much of the cache is left, and a replay has the same answers."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import SMALL_FLAGS
from tests.end_to_end.test_recurrent import write_pair
from tests.hosted import Host
from tests.serving.raw_session import RawSession, propose, substance_of, truncate, verify

FAILED_PRECONDITION = 9
PROMPT = [number % 90 for number in range(60)]
DRAFTS = [5, 6, 7]


@pytest.fixture(scope="module")
def session(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawSession]:
    """Of a server with two states."""
    target, _ = write_pair("lfm2", tmp_path_factory.mktemp("pair"))
    flags = ("--model", target, *SMALL_FLAGS, "--check-integrity", "--kv-cache-memory", "300KiB")
    service = host.start("target_server", *flags)
    session = RawSession(service)
    yield session
    session.close()
    # It has checked its cache's bookkeeping whenever it was idle.
    assert service.stop() == 0


def answer_of_a_fresh_sequence(session: RawSession) -> Any:
    sequence = session.open()
    answer = session.ask(sequence, verify(0, PROMPT, DRAFTS))
    session.send(sequence, truncate(0))
    return substance_of(answer)


def test_an_older_sequence_takes_the_state_of_the_youngest(session: RawSession) -> None:
    expected = answer_of_a_fresh_sequence(session)
    oldest, second, youngest = (session.open() for _ in range(3))
    for sequence in (second, youngest):
        assert substance_of(session.ask(sequence, verify(0, PROMPT, DRAFTS))) == expected
        session.send(sequence, truncate(len(PROMPT)))
    assert substance_of(session.ask(oldest, verify(0, PROMPT, DRAFTS))) == expected
    failure = session.ask(youngest, verify(len(PROMPT), [1])).failure
    assert (failure.status.code, failure.cache_length) == (FAILED_PRECONDITION, 0)
    session.send(second, truncate(0))
    session.send(youngest, truncate(0))
    assert substance_of(session.ask(youngest, verify(0, PROMPT, DRAFTS))) == expected
    for sequence in (oldest, youngest):
        session.send(sequence, truncate(0))


def test_a_recurrent_target_accepts_what_it_proposed(session: RawSession) -> None:
    sequence = session.open(temperature=0)
    drafts = list(session.ask(sequence, propose(0, PROMPT, 4)).proposal.tokens)
    session.send(sequence, truncate(len(PROMPT) - 1))
    verify_result = session.ask(sequence, verify(len(PROMPT) - 1, PROMPT[-1:], drafts, rule=1)).verify_result
    assert list(verify_result.tokens)[:-1] == drafts
    session.send(sequence, truncate(0))


def test_a_truncate_below_the_log_may_leave_less(session: RawSession) -> None:
    expected = answer_of_a_fresh_sequence(session)
    sequence = session.open()
    session.ask(sequence, verify(0, [*PROMPT, *[9] * 80]))
    session.send(sequence, truncate(len(PROMPT)))
    failure = session.ask(sequence, verify(len(PROMPT), DRAFTS)).failure
    assert failure.status.code == FAILED_PRECONDITION
    assert failure.cache_length == 0
    session.send(sequence, truncate(0))
    assert substance_of(session.ask(sequence, verify(0, PROMPT, DRAFTS))) == expected
    session.send(sequence, truncate(0))
