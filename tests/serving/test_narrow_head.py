"""A draft server whose head knows the first token ids: what it proposes depends on the sequence's own context alone."""

from collections.abc import Iterator, Sequence

import pytest

from tests.conftest import SMALL_FLAGS
from tests.hosted import Host
from tests.serving.raw_session import RawSession, propose, substance_of
from tests.serving.test_guessed_drafts import GUESSES, MODES, ask

NUM_FIRST, NUM_DRAFTS, EOS = 64, 6, 0
# Each with other tokens that the head does not know.
CONTEXTS = [[3, 100 + start, 4, 300 + start, 5, 100 + start] for start in range(6)]


# Rows that are copied as they are, and rows that are made anew: each kind is multiplied by one kernel in any batch.
@pytest.fixture(scope="module", params=["int4", "none"])
def draft(request: pytest.FixtureRequest, host: Host) -> Iterator[RawSession]:
    flags = [*SMALL_FLAGS]
    flags[flags.index("float32")], flags[flags.index("none")] = "bfloat16", request.param
    server = host.start("draft_server", "--model", "dummy:tiny", *flags, f"PACELINE_DRAFT_VOCAB_SIZE={NUM_FIRST}")
    session = RawSession(server)
    yield session
    session.close()


def known_tokens(context: Sequence[int]) -> set[int]:
    return {*range(NUM_FIRST), *context, EOS}


@pytest.mark.parametrize("mode", MODES)
def test_a_proposal_is_the_same_alone_and_in_company(draft: RawSession, mode: str) -> None:
    draft_mode, temperature = MODES[mode]
    fills = [propose(0, context, NUM_DRAFTS, draft_mode) for context in CONTEXTS]
    alone = [substance_of(draft.ask(draft.open(temperature), fill)) for fill in fills]
    sequences = [draft.open(temperature) for _ in fills]
    together = draft.send_together(list(zip(sequences, fills, strict=True)))
    # Tokens, supports and q, to the last bit.
    assert [substance_of(draft.answer(each)) for each in together] == alone
    for context, proposal in zip(CONTEXTS, alone, strict=True):
        assert {*proposal.tokens, *proposal.support_token_ids} <= known_tokens(context)
    drawn = {token for proposal in alone for token in (*proposal.tokens, *proposal.support_token_ids)}
    if mode == "sampled":
        assert drawn & {token for context in CONTEXTS for token in context if token >= NUM_FIRST}


@pytest.mark.parametrize("name", GUESSES)
@pytest.mark.parametrize("mode", MODES)
def test_a_proposal_is_the_same_with_any_guesses(draft: RawSession, mode: str, name: str) -> None:
    alone = ask(draft, mode, prompt=CONTEXTS[0])
    assert ask(draft, mode, GUESSES[name](list(alone.tokens)), CONTEXTS[0]) == alone
