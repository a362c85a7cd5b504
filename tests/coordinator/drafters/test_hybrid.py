"""Hybrid drafting: n-grams after a long match, the model elsewhere, and both hear of every round's end."""

import numpy as np
import pytest

from coordinator.acceptance import Proposal
from coordinator.context import Context
from coordinator.drafters.hybrid import HybridDrafter
from coordinator.drafters.ngram import NgramDrafter
from coordinator.policy.policy import FixedPolicy
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


def hybrid(model: StubModel, ngram: NgramDrafter | None = None, num_draft_tokens: int = 4) -> FixedPolicy:
    return FixedPolicy(HybridDrafter(ngram or NgramDrafter(), model), num_draft_tokens)


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
    drafter = hybrid(model, num_draft_tokens=2)
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


async def test_the_prompts_own_round_has_no_drafts() -> None:
    model = StubModel()
    proposal = await hybrid(model).propose(make_context([1, 2, 3, 1, 2]))
    assert (len(proposal), proposal.report.reason, model.asked) == (0, "the prompt's round", [])


async def test_no_more_is_asked_for_than_the_answer_has_room_for() -> None:
    model, context = StubModel(), make_context([1, 2, 3], max_tokens=4, trace=True)
    decide(context, [9])
    proposal = await hybrid(model).propose(context)
    # Three tokens are left: two drafts and one more.
    assert (model.asked, proposal.report.num_asked) == ([(4, 2)], 2)
