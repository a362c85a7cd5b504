"""Hybrid drafting: n-grams after a long match, the model elsewhere, and both hear of every round's end."""

import numpy as np
import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, Verdict
from coordinator.context import Context
from coordinator.draft_length import FixedLength
from coordinator.drafting.hybrid import HybridProposer
from coordinator.drafting.ngram import NgramDrafter
from coordinator.round import Round
from tests.coordinator.contexts import decide, make_context

BY_MODEL = Proposal([50, 51], [np.array([50]), np.array([51])], [np.ones(1), np.ones(1)])


class StubModel:
    """In the draft server's place: only which drafter is asked is tested here, not what a model says."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.truncated: list[int] = []
        self.is_released = False

    async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
        self.asked.append((len(context), num_draft_tokens))
        return BY_MODEL

    def truncate(self, length: int) -> None:
        self.truncated.append(length)

    def release(self) -> None:
        self.is_released = True


class RecordingNgram(NgramDrafter):
    """The real one, which does nothing in truncate and release; here it can be seen that they were called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[object] = []

    def truncate(self, length: int) -> None:
        self.calls.append(length)

    def release(self) -> None:
        self.calls.append("release")


def hybrid(
    model: StubModel, ngram: NgramDrafter | None = None, ngram_tokens: int = 4, model_tokens: int = 4
) -> HybridProposer:
    return HybridProposer(ngram or NgramDrafter(), FixedLength(ngram_tokens), model, FixedLength(model_tokens))


def decided(tokens: list[int]) -> Context:
    """A context of these tokens, the last of them generated: its prompt's round is over."""
    context = make_context(tokens[:-1])
    decide(context, tokens[-1:])
    return context


async def test_match_of_two_tokens_proposes_by_ngram_and_does_not_ask_the_model() -> None:
    model = StubModel()
    two = await hybrid(model).propose(decided([1, 2, 3, 4, 9, 2, 3]))
    assert two.tokens == [4, 9, 2, 3]
    proposal = await hybrid(model).propose(decided([1, 2, 3, 4, 5, 1, 2, 3]))
    assert proposal.tokens == [4, 5, 1, 2]
    assert proposal.supports == [], "match checks it"
    assert model.asked == []


@pytest.mark.parametrize(
    "prompt",
    [[1, 2, 3, 3], [1, 2, 3], [6, 7]],
    ids=["one token matches", "none matches", "two tokens in all"],
)
async def test_shorter_match_proposes_by_the_model(prompt: list[int]) -> None:
    model = StubModel()
    proposal = await hybrid(model).propose(decided(prompt))
    assert proposal.tokens == BY_MODEL.tokens
    assert model.asked == [(len(prompt), 4)]


async def test_model_takes_over_where_the_match_ends_and_gives_way_where_one_begins() -> None:
    model, context = StubModel(), decided([1, 2, 3, 4, 1, 2, 3])
    drafter = hybrid(model, ngram_tokens=2)
    by_ngram = []
    # 6 ends the match. 6 7 8 9 is decided in the model's rounds, and matches when 6 7 comes again.
    for tokens in ([4], [6], [7, 8, 9], [6, 7], [8], [9]):
        by_ngram.append((await drafter.propose(context)).tokens != BY_MODEL.tokens)
        decide(context, tokens)
        drafter.truncate(len(context) - 1)
    assert by_ngram == [True, True, False, False, True, True]
    assert (await drafter.propose(context)).tokens == [6, 7]


async def test_no_drafts_from_the_model_leave_a_round_without_drafts() -> None:
    class Away(StubModel):
        """A draft server that is gone."""

        async def propose(self, context: Context, num_draft_tokens: int) -> Proposal:
            return Proposal()

    assert len(await hybrid(Away()).propose(decided([1, 2, 3, 4, 9, 3]))) == 0


def test_truncate_and_release_reach_both() -> None:
    ngram, model = RecordingNgram(), StubModel()
    drafter = hybrid(model, ngram)
    drafter.truncate(17)
    drafter.truncate(21)
    assert (ngram.calls, model.truncated, model.is_released) == ([17, 21], [17, 21], False)
    drafter.release()
    assert (ngram.calls, model.is_released) == ([17, 21, "release"], True)


async def test_each_drafter_has_a_length_of_its_own() -> None:
    model = StubModel()
    by_ngram = hybrid(model, ngram_tokens=3, model_tokens=1)
    assert (await by_ngram.propose(decided([1, 2, 3, 4, 5, 1, 2, 3]))).tokens == [4, 5, 1]
    await by_ngram.propose(decided([1, 2, 3, 4, 9, 3]))
    assert model.asked == [(6, 1)]


async def test_each_rule_learns_of_its_own_rounds_alone() -> None:
    class Recording(FixedLength):
        def __init__(self) -> None:
            super().__init__(2)
            self.learned: list[Round] = []

        def learn(self, finished: Round) -> None:
            self.learned.append(finished)

    ngram, model = Recording(), Recording()
    proposer = HybridProposer(NgramDrafter(), ngram, StubModel(), model)
    for tokens in ([1, 2, 3, 4, 5, 1, 2, 3], [6, 7], [6, 8]):
        proposal = await proposer.propose(decided(tokens))
        proposer.learn(Round(proposal, Verdict([0]), Outcome([0], 0, Origin.BONUS), 0.0, 0.0, 0.0))
    assert [round.proposal.tokens for round in ngram.learned] == [[4, 5]]
    assert [round.proposal.tokens for round in model.learned] == [BY_MODEL.tokens] * 2


async def test_the_prompts_own_round_has_no_drafts_and_teaches_nothing() -> None:
    class Recording(FixedLength):
        def learn(self, finished: Round) -> None:
            raise AssertionError("nothing was asked of this rule")

    model = StubModel()
    proposer = HybridProposer(NgramDrafter(), Recording(4), model, Recording(4))
    proposal = await proposer.propose(make_context([1, 2, 3, 1, 2]))
    proposer.learn(Round(proposal, Verdict([0]), Outcome([0], 0, Origin.TARGET), 0.0, 0.0, 0.0))
    assert (len(proposal), model.asked) == (0, [])
