"""A target server with the draft model in its process gives it the tokens of a round itself."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import TINY
from tests.hosted import Host, RefusedStart
from tests.serving.raw_session import RawSession, propose, substance_of, truncate, verify

GREEDY, MATCH, INVALID_ARGUMENT = 2, 1, 3
PROMPT = [number * 7 % 500 for number in range(40)]
NUM_DRAFTS = 3


@pytest.fixture(scope="session")
def colocated_addresses(host: Host, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Of a target server, and of the draft server in its process."""
    folder = tmp_path_factory.mktemp("colocated")
    target, draft = f"unix:{folder}/target.sock", f"unix:{folder}/draft.sock"
    host.start("target_server", "--listen", target, *TINY, "draft_server", "--listen", draft, *TINY)
    return target, draft


@pytest.fixture
def colocated(colocated_addresses: tuple[str, str]) -> Iterator[tuple[RawSession, RawSession]]:
    sessions = [RawSession(SimpleNamespace(address=each)) for each in colocated_addresses]  # type: ignore[arg-type]
    yield sessions[0], sessions[1]
    for each in sessions:
        each.close()


def then_propose(
    verifying: Any, draft: RawSession, sequence: int, cache_length: int, command_id: int, session_id: str = ""
) -> Any:
    def fill(command: Any) -> None:
        verifying(command)
        following = command.verify.next_propose
        following.session_id, following.sequence_id = session_id or draft.session_info.session_id, sequence
        following.command_id, following.cache_length = command_id, cache_length
        following.propose.num_draft_tokens, following.propose.draft_mode = NUM_DRAFTS, GREEDY

    return fill


def proposed_after(draft: RawSession, tokens: list[int]) -> Any:
    return substance_of(draft.ask(draft.open(0.0), propose(0, tokens, NUM_DRAFTS, GREEDY)))


@pytest.mark.parametrize("num_missing", [0, 1, 17])
@pytest.mark.parametrize("num_accepted", range(NUM_DRAFTS + 1))
def test_the_draft_model_goes_on_after_the_tokens_of_a_round(
    colocated: tuple[RawSession, RawSession], num_accepted: int, num_missing: int
) -> None:
    """Whatever of the context and of the drafts is in its cache."""
    target, draft = colocated
    sequences, context = (target.open(0.0), draft.open(0.0)), [*PROMPT]
    drafts = list(draft.ask(sequences[1], propose(0, context, NUM_DRAFTS, GREEDY)).proposal.tokens)
    cached = len(context) + NUM_DRAFTS - 1
    if num_missing:
        cached = len(context) - num_missing
        draft.send(sequences[1], truncate(cached))
        # Behind it in the draft server's stream: the target's must not be faster.
        draft.open(0.0)
    if num_accepted < NUM_DRAFTS:
        drafts[num_accepted] = (drafts[num_accepted] + 1) % 500
    checking = verify(0, context, drafts, rule=MATCH)
    answer = target.ask(sequences[0], then_propose(checking, draft, sequences[1], cached, 1000)).verify_result
    decided = [*context, *answer.tokens[: num_accepted + 1]]
    assert answer.tokens[:num_accepted] == drafts[:num_accepted]
    assert answer.tokens[num_accepted : num_accepted + 1] != drafts[num_accepted : num_accepted + 1]
    following = draft.answer(1000)
    assert following.proposal.first_position == len(decided)
    assert substance_of(following) == proposed_after(draft, decided)
    # Its cache holds what it says.
    position = len(decided) + following.proposal.num_fed_drafts
    draft.send(sequences[1], truncate(len(decided)))
    tail = [*decided, *following.proposal.tokens][len(decided) : position]
    again = draft.ask(sequences[1], propose(len(decided), [*tail, 7], NUM_DRAFTS, GREEDY))
    assert substance_of(again) == proposed_after(draft, [*decided, *tail, 7])


def test_a_cache_of_another_length_fails_the_proposal_alone(colocated: tuple[RawSession, RawSession]) -> None:
    target, draft = colocated
    sequence = draft.open(0.0)
    checking = then_propose(verify(0, PROMPT, [1], rule=MATCH), draft, sequence, 5, 1000)
    assert target.ask(target.open(0.0), checking).WhichOneof("answer") == "verify_result"
    assert draft.answer(1000).failure.cache_length == 0


def test_an_unknown_session_or_sequence_is_nobodys_loss(colocated: tuple[RawSession, RawSession]) -> None:
    target, draft = colocated
    for sequence, session_id in ((draft.open(), "another"), (999, "")):
        checking = then_propose(verify(0, PROMPT, rule=MATCH), draft, sequence, 0, 1000, session_id)
        assert target.ask(target.open(0.0), checking).WhichOneof("answer") == "verify_result"
    assert "999" in draft.answer(1000).failure.status.message


def test_after_a_verify_that_fails_nothing_is_proposed(colocated: tuple[RawSession, RawSession]) -> None:
    target, draft = colocated
    sequence = draft.open(0.0)
    failing = then_propose(verify(3, PROMPT, rule=MATCH), draft, sequence, 0, 1000)
    assert target.ask(target.open(0.0), failing).failure.cache_length == 0
    assert draft.ask(sequence, propose(0, PROMPT, NUM_DRAFTS, GREEDY)).WhichOneof("answer") == "proposal"
    assert 1000 not in draft._answers


def test_a_target_without_a_draft_model_refuses_by_name(target: RawSession, draft: RawSession) -> None:
    checking = then_propose(verify(0, PROMPT, rule=MATCH), draft, draft.open(), 0, 1000)
    failure = target.ask(target.open(), checking).failure
    assert failure.status.code == INVALID_ARGUMENT
    assert "next_propose" in failure.status.message
    assert target.describe().draft_instance_id == ""


def test_what_the_server_does_not_decide_alone_is_refused(colocated: tuple[RawSession, RawSession]) -> None:
    target, draft = colocated

    def leniently(command: Any) -> None:
        verify(0, PROMPT, [1], rule=MATCH)(command)
        command.verify.lenience = 0.5

    def with_a_tail(command: Any) -> None:
        verify(0, PROMPT, rule=MATCH)(command)
        command.verify.next_propose.propose.tail_tokens.append(1)

    for checking in (verify(0, PROMPT, [1]), leniently, with_a_tail):
        failure = target.ask(target.open(0.0), then_propose(checking, draft, draft.open(), 0, 1000)).failure
        assert failure.status.code == INVALID_ARGUMENT
        assert "next_propose" in failure.status.message


def test_on_a_gpu_each_model_has_its_process(host: Host, tmp_path: Path) -> None:
    draft = ("draft_server", "--listen", f"unix:{tmp_path}/draft.sock", *TINY)
    with pytest.raises(RefusedStart, match="device is 'cuda'; for two models in one process it must be 'cpu'"):
        host.start("target_server", "--listen", f"unix:{tmp_path}/target.sock", *TINY, "--device", "cuda", *draft)


def test_both_models_have_as_many_threads(host: Host, tmp_path: Path) -> None:
    draft = ("draft_server", "--listen", f"unix:{tmp_path}/draft.sock", *TINY, "--threads", "2")
    with pytest.raises(RefusedStart, match="threads is 1; for two models in one process it must be the same for both"):
        host.start("target_server", "--listen", f"unix:{tmp_path}/target.sock", *TINY, *draft)


def test_the_model_info_names_the_draft_server_in_the_process(colocated: tuple[RawSession, RawSession]) -> None:
    target, draft = (each.describe() for each in colocated)
    assert target.draft_instance_id == draft.instance_id
    assert draft.draft_instance_id == ""
    assert (target.role, draft.role) == ("target", "draft")
