"""A fork shares its parent's cache up to a length, in the order of the parent's commands, and nobody's answer changes."""

from typing import Any

from tests.serving.raw_session import RawSession, opening, release, substance_of, truncate, verify

MATCH = 1
# The blocks of the servers hold 16 tokens each: the last of these three is half full.
PROMPT = [(7 * index) % 500 for index in range(40)]


def fork(parent: int, length: int) -> Any:
    def fill(command: Any) -> None:
        command.fork.parent_sequence_id = parent
        command.fork.length = length

    return fill


def fresh(target: RawSession, tokens: list[int]) -> Any:
    """The answer behind `tokens` of a sequence that shares nothing: a prompt's beginning is cached in whole blocks."""
    sequence = target.open()
    answer = substance_of(target.ask(sequence, verify(0, tokens, rule=MATCH)))
    target.send(sequence, release)
    return answer


def test_parent_and_fork_go_on_as_if_each_were_alone(target: RawSession) -> None:
    parent = target.open()
    target.ask(parent, verify(0, PROMPT, rule=MATCH))
    forked = target.open()
    target.send(forked, fork(parent, 37))
    # Both write into the block that both began with: the fork first, then the parent, then the fork again.
    of_fork = substance_of(target.ask(forked, verify(37, [11, 12], rule=MATCH)))
    of_parent = substance_of(target.ask(parent, verify(40, [21, 22], rule=MATCH)))
    later = substance_of(target.ask(forked, verify(39, [13], rule=MATCH)))
    assert of_fork == fresh(target, [*PROMPT[:37], 11, 12])
    assert of_parent == fresh(target, [*PROMPT, 21, 22])
    assert later == fresh(target, [*PROMPT[:37], 11, 12, 13])


def test_a_fork_waits_for_its_parents_commands_and_its_own_wait_for_it(target: RawSession) -> None:
    parent, forked, of_fork = target.open(), target.open(), target.open()
    long = PROMPT * 6
    # The forks are asked for while the parent's prompt is read, in several steps.
    ids = target.send_together([
        (parent, verify(0, long, rule=MATCH)), (forked, fork(parent, 200)), (of_fork, fork(forked, 190)),
        (of_fork, verify(190, [5], rule=MATCH)), (forked, verify(200, [6], rule=MATCH)), (parent, truncate(100)),
    ])  # fmt: skip
    assert substance_of(target.answer(ids[3])) == fresh(target, [*long[:190], 5])
    assert substance_of(target.answer(ids[4])) == fresh(target, [*long[:200], 6])
    assert target.ask(parent, verify(100, [1], rule=MATCH)).WhichOneof("answer") == "verify_result"


def test_bad_forks_are_refused_by_field_and_range(target: RawSession) -> None:
    parent, forked = target.open(), target.open()
    target.ask(parent, verify(0, PROMPT, rule=MATCH))
    failure = target.ask(forked, fork(parent, 41)).failure
    assert failure.status.message == "length is 41, but the parent's cache holds 40 tokens"
    assert failure.cache_length == 0
    # Refused until it is set right, as after any failure.
    assert "earlier command" in target.ask(forked, verify(0, [1], rule=MATCH)).failure.status.message
    target.send(forked, truncate(0))
    assert target.ask(forked, verify(0, [1], rule=MATCH)).WhichOneof("answer") == "verify_result"
    assert "must be a sequence's first command" in target.ask(forked, fork(parent, 3)).failure.status.message
    for unknown in (9999, parent):
        message = target.ask(unknown if unknown == parent else target.open(), fork(unknown, 1)).failure.status.message
        assert f"parent_sequence_id is {unknown}; it must be another open sequence" in message


def test_a_fork_whose_parent_is_released_first_fails_and_no_block_is_lost(target: RawSession) -> None:
    parent, forked = target.open(), target.open()
    ids = target.send_together([
        (parent, verify(0, PROMPT * 7, rule=MATCH)), (forked, fork(parent, 30)), (forked, verify(30, [1], rule=MATCH)),
        (parent, release),
    ])  # fmt: skip
    assert target.answer(ids[1]).failure.status.message == "dropped by a Release"
    assert "earlier command" in target.answer(ids[2]).failure.status.message
    target.send(forked, release)
    target.ask(target.open(), verify(0, [1], rule=MATCH))


def test_a_long_chain_of_waiting_forks_runs(target: RawSession) -> None:
    parent = target.open()
    chain = [(parent, verify(0, PROMPT * 6, rule=MATCH))]
    for sequence in range(parent + 1, parent + 1501):
        chain += [(sequence, opening()), (sequence, fork(sequence - 1, 50))]
    ids = target.send_together(chain)
    last = target.ask(parent + 1500, verify(50, [3], rule=MATCH))
    assert substance_of(last) == fresh_behind(target, parent + 1501, [*(PROMPT * 6)[:50], 3])
    assert target.answer(ids[0]).WhichOneof("answer") == "verify_result"


def fresh_behind(target: RawSession, sequence: int, tokens: list[int]) -> Any:
    target.ask(sequence, opening())
    return substance_of(target.ask(sequence, verify(0, tokens, rule=MATCH)))
