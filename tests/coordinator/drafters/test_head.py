"""The head drafter proposes what the target's answer brought behind the context, which forced tokens may have lengthened."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from coordinator.drafters.head import HeadDrafter
from coordinator.reports import NextDrafts, VerifyReport
from tests.coordinator.contexts import decide, make_context

PROMPT = [1, 2, 3]
DRAFTS = NextDrafts(5, [20, 21, 22, 23], [1.0, 1.0, 0.98, 0.3])


def make_drafter() -> HeadDrafter:
    drafter = HeadDrafter(cast(Any, SimpleNamespace(draft_head_times=None)))
    drafter.take(VerifyReport(next_drafts=DRAFTS))
    return drafter


@pytest.mark.parametrize(
    ("behind", "expected"),
    [
        ([], []),
        ([10], []),
        ([10, 11], [20, 21, 22, 23]),
        ([10, 11, 20], [21, 22, 23]),
        ([10, 11, 20, 21], [22, 23]),
        ([10, 11, 21], []),
        ([10, 11, 20, 22], []),
        ([10, 11, 20, 21, 22, 23], []),
        ([10, 11, 20, 21, 22, 23, 24], []),
    ],
)
async def test_what_is_behind_the_context_is_proposed(behind: list[int], expected: list[int]) -> None:
    context, drafter = make_context(PROMPT), make_drafter()
    if behind:
        decide(context, behind)
    proposal = await drafter.propose(context, 16)
    assert proposal.tokens == expected
    assert list(proposal.report.confidences) == DRAFTS.confidences[len(DRAFTS.tokens) - len(expected) :]
    assert len(await drafter.candidates(context, 16)) == len(expected)


async def test_a_certain_draft_tells_nothing_of_others() -> None:
    context, drafter = make_context(PROMPT), make_drafter()
    decide(context, [10, 11])
    forced, _, guessed, unsure = await drafter.candidates(context, 16)
    assert len({forced, guessed, unsure}) == 3
    decide(context, [20, 21, 22, 24])
    await drafter.candidates(context, 16)
    assert drafter.take_hits() == [(forced, True), (forced, True), (guessed, True), (unsure, False)]
    assert [drafter.prior(each) for each in (forced, guessed, unsure)] == [1.0, 0.95, 0.35]
