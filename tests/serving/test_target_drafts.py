"""A target server drafts for itself: both kinds of jobs on one sequence."""

import grpc
import pytest

from tests.serving.raw_session import RawSession, propose, release, truncate, verify

SAMPLED, GREEDY, COUPLED = 1, 2, 3
MATCH = 1
INVALID_ARGUMENT = 3
PROMPT = [number * 7 % 500 for number in range(40)]
NUM_DRAFTS = 5


@pytest.mark.parametrize(("temperature", "draft_mode"), [(0.0, GREEDY), (1.0, COUPLED)])
def test_a_target_accepts_all_that_it_proposes(target: RawSession, temperature: float, draft_mode: int) -> None:
    context, sequence = PROMPT, target.open(temperature)
    for _ in range(4):
        cached = len(context) - 1 if context is not PROMPT else 0
        drafts = list(target.ask(sequence, propose(cached, context[cached:], NUM_DRAFTS, draft_mode)).proposal.tokens)
        assert len(drafts) == NUM_DRAFTS
        # As in any round, the newest token is fed again.
        target.send(sequence, truncate(len(context) - 1))
        verify_result = target.ask(sequence, verify(len(context) - 1, context[-1:], drafts, rule=MATCH)).verify_result
        assert list(verify_result.tokens)[:-1] == drafts
        context = [*context, *verify_result.tokens]
        target.send(sequence, truncate(len(context) - 1))
    target.send(sequence, release)


@pytest.mark.parametrize("draft_mode", [SAMPLED, GREEDY, COUPLED])
def test_a_target_proposes_as_a_draft_server_with_its_model(
    target: RawSession, draft: RawSession, draft_mode: int
) -> None:
    proposals = [each.ask(each.open(), propose(0, PROMPT, NUM_DRAFTS, draft_mode)).proposal for each in (target, draft)]
    ours, theirs = ((list(each.tokens), list(each.support_token_ids), each.num_fed_drafts) for each in proposals)
    assert ours == theirs


def test_a_draft_server_refuses_to_verify_naming_command_and_role(draft: RawSession) -> None:
    sequence = draft.open()
    failure = draft.ask(sequence, verify(0, [1])).failure
    assert failure.status.code == INVALID_ARGUMENT
    allowed = "one of open, fork, truncate, release, propose at a draft server"
    assert failure.status.message == f"command is 'verify'; it must be {allowed}"
    draft.send(sequence, truncate(0))
    assert draft.ask(sequence, propose(0, [1], 1)).WhichOneof("answer") == "proposal"


def test_a_target_takes_no_shared_vocabulary(target: RawSession) -> None:
    target.share(512, [1, 2], [3, 4])
    with pytest.raises(grpc.RpcError) as caught:
        list(target.responses())
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "vocabulary" in caught.value.details()
    assert "target server" in caught.value.details()


def test_cards_say_the_role(target: RawSession, draft: RawSession) -> None:
    assert (target.describe().role, draft.describe().role) == ("target", "draft")
