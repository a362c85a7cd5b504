"""A draft server drafts what its model shares with a target of another vocabulary, by the target's ids."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import numpy as np
import pytest

from tests.hosted import HostedService
from tests.serving.raw_session import RawSession, opening, propose

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
VOCAB_SIZE, NUM_DRAFTS = 512, 6
SAMPLED, GREEDY, COUPLED = 1, 2, 3
MODES = {"greedy": (GREEDY, 0.0), "coupled": (COUPLED, 1.0), "sampled": (SAMPLED, 1.0)}
INVALID_ARGUMENT = 3
# A larger vocabulary, in which an even id is 1,000 more. It has no odd ones.
EVEN, SHIFT = range(0, VOCAB_SIZE, 2), 1000


@pytest.fixture
def parallel_draft(parallel_draft_server: HostedService) -> Iterator[RawSession]:
    session = RawSession(parallel_draft_server)
    yield session
    session.close()


def drafted(session: RawSession, mode: str, target_position: int | None = None, guess: Sequence[int] = ()) -> Any:
    draft_mode, temperature = MODES[mode]

    def fill(command: Any) -> None:
        propose(0, PROMPT, NUM_DRAFTS, draft_mode)(command)
        command.propose.guess_tokens.extend(guess)
        if target_position is not None:
            command.propose.target_position = target_position

    return session.ask(session.open(temperature), fill).proposal


@pytest.mark.parametrize("mode", MODES)
def test_drafts_are_shared_tokens_by_the_targets_ids(draft: RawSession, mode: str) -> None:
    draft.share(2000, EVEN, [token + SHIFT for token in EVEN])
    proposal = drafted(draft, mode)
    assert len(proposal.tokens) == NUM_DRAFTS
    assert {token - SHIFT for token in (*proposal.tokens, *proposal.support_token_ids)} <= set(EVEN)
    if mode == "sampled":
        probs = np.split(np.frombuffer(proposal.support_probs, "<f4"), np.cumsum(proposal.support_sizes)[:-1])
        assert np.allclose([each.sum() for each in probs], 1)
    # Guesses would be the target's tokens.
    assert list(drafted(draft, mode, guess=PROMPT).tokens) == list(proposal.tokens)


def test_a_draft_that_is_fed_is_the_models_own_token(draft: RawSession) -> None:
    plain = list(drafted(draft, "greedy").tokens)
    draft.share(VOCAB_SIZE, range(VOCAB_SIZE), reversed(range(VOCAB_SIZE)))
    assert list(drafted(draft, "greedy").tokens) == [VOCAB_SIZE - 1 - token for token in plain]


def test_drafts_of_one_forward_are_shared_tokens_too(parallel_draft: RawSession) -> None:
    parallel_draft.share(64, range(8), range(56, 64))
    proposal = drafted(parallel_draft, "sampled")
    assert (len(proposal.tokens), proposal.num_fed_drafts) == (5, 0)
    assert {*proposal.tokens, *proposal.support_token_ids} <= set(range(56, 64))


@pytest.mark.parametrize("mode", ["coupled", "sampled"])
def test_noise_goes_by_the_targets_position(draft: RawSession, mode: str) -> None:
    own = drafted(draft, mode)
    assert list(drafted(draft, mode, target_position=len(PROMPT)).tokens) == list(own.tokens)
    assert list(drafted(draft, mode, target_position=len(PROMPT) + 1).tokens) != list(own.tokens)


def test_streams_with_and_without_another_vocabulary_share_a_server(
    draft: RawSession, draft_server: HostedService
) -> None:
    other = RawSession(draft_server)
    other.share(2000, EVEN, [token + SHIFT for token in EVEN])
    expected = {mode: (drafted(draft, mode), drafted(other, mode)) for mode in MODES}
    commands = []
    for mode, (draft_mode, temperature) in MODES.items():
        for session in (draft, other):
            sequence = session.open(temperature)
            commands += [(mode, session, session.send(sequence, propose(0, PROMPT, NUM_DRAFTS, draft_mode))[0])]
    for mode, session, command_id in commands:
        found = session.answer(command_id).proposal
        assert list(found.tokens) == list(expected[mode][session is other].tokens)
    other.close()


REFUSED_VOCABULARIES: dict[str, tuple[int, Sequence[int], Sequence[int], str]] = {
    "no token": (10, [], [], "draft_token_ids is 'empty'; it must be at least one id"),
    "one id": (1, [0], [0], "target_vocab_size is 1; it must be in [2, 4194304]"),
    "other sizes": (10, [1, 2], [1], "target_token_ids is '1 ids'; it must be 2 ids"),
    "an id that the target lacks": (10, [1], [10], "target_token_ids is 10; it must be token ids in [0, 10)"),
    "an id that the model lacks": (10, [512], [1], "draft_token_ids is 512; it must be token ids in [0, 512)"),
    "one token twice": (10, [1, 1], [1, 2], "draft_token_ids is 'repeated ids'; it must be all different"),
}


@pytest.mark.parametrize("name", REFUSED_VOCABULARIES)
def test_a_vocabulary_that_does_not_fit_ends_the_stream(draft: RawSession, name: str) -> None:
    *vocabulary, said = REFUSED_VOCABULARIES[name]
    draft.share(*vocabulary)  # type: ignore[arg-type]
    with pytest.raises(grpc.RpcError) as caught:
        draft.open()
    assert (caught.value.code(), caught.value.details()) == (grpc.StatusCode.INVALID_ARGUMENT, said)


def grammar(command: Any) -> None:
    command.open.grammar = "start: /a/"


def unshared(command: Any) -> None:
    command.open.sampling.allowed_token_ids.extend([1, 3])


def all_banned(command: Any) -> None:
    command.open.sampling.banned_token_ids.extend(token + SHIFT for token in EVEN)


def unknown(command: Any) -> None:
    command.open.eos_token_ids.append(2000)


@pytest.mark.parametrize("change", [grammar, unshared, all_banned, unknown])
def test_what_leaves_nothing_to_draft_is_refused(draft: RawSession, change: Callable[[Any], None]) -> None:
    draft.share(2000, EVEN, [token + SHIFT for token in EVEN])

    def fill(command: Any) -> None:
        opening()(command)
        change(command)

    assert draft.ask(draft.next_sequence_id(), fill).failure.status.code == INVALID_ARGUMENT
    assert drafted(draft, "sampled").tokens
