"""Hierarchical drafting: n-grams guess what the draft model will draft, as far as they were right before."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coordinator.drafters.deadline import DraftDeadline
from coordinator.drafters.hierarchical import HierarchicalDrafter, best_num_guesses
from coordinator.drafters.ngram import NgramDrafter
from tests.coordinator.contexts import make_context
from tests.coordinator.test_remote_model import FakeDraft, fill_with, linked, placement

# Behind 3 4 5 n-grams foresee 6 1 2 3.
REPEATING = [1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5, 6, 1, 2, 3, 4, 5]
AS_GUESSED, OTHERWISE = fill_with(tokens=[6, 1, 2, 3, 4]), fill_with(tokens=[9, 9, 9, 9, 9])


async def guesses(folder: Path, fill: Callable[[Any], None], num_rounds: int, prompt: list[int]) -> list[list[int]]:
    """What is guessed for 5 drafts, round after round with the same context."""
    fake = FakeDraft(fill)
    async with linked(fake, folder) as pool:
        context = make_context(prompt)
        drafter = HierarchicalDrafter(placement(pool), context.request, DraftDeadline(), NgramDrafter())
        for _ in range(num_rounds):
            proposal = await drafter.propose(context, 5)
            assert (len(proposal), proposal.report.drafter) == (5, "hierarchical")
            drafter.truncate(len(prompt) - 1)
    return [list(propose.guess_tokens) for propose in fake.asked]


async def test_ngrams_guess_all_drafts_but_the_last(tmp_path: Path) -> None:
    found = await guesses(tmp_path, AS_GUESSED, 9, REPEATING)
    assert found[-1] == [6, 1, 2, 3]


async def test_guesses_that_the_model_does_not_draft_are_given_up(tmp_path: Path) -> None:
    found = await guesses(tmp_path, OTHERWISE, 12, REPEATING)
    assert found[0][:1] == [6]
    assert found[-1] == []


async def test_a_guess_behind_a_wrong_one_says_nothing(tmp_path: Path) -> None:
    """All kinds of guess are right but the first, which is of another kind than the others."""
    context = make_context([1, 2, 3, 4, 7, 2, 3, 4, 5, 6, 2])
    fake = FakeDraft(fill_with(tokens=[9, 4, 5, 6, 2]))
    async with linked(fake, tmp_path) as pool:
        drafter = HierarchicalDrafter(placement(pool), context.request, DraftDeadline(), NgramDrafter())
        before = dict.fromkeys(await NgramDrafter().candidates(context, 4))
        first, *others = before
        rates = {kind: drafter._rates[kind] for kind in before}
        await drafter.propose(context, 5)
    assert drafter._rates[first] < rates[first]
    assert [drafter._rates[kind] for kind in others] == [rates[kind] for kind in others]


async def test_where_nothing_repeats_nothing_is_guessed(tmp_path: Path) -> None:
    assert await guesses(tmp_path, OTHERWISE, 2, [1, 2, 3]) == [[], []]


async def test_one_draft_needs_no_guess(tmp_path: Path) -> None:
    fake = FakeDraft(fill_with(tokens=[6]))
    async with linked(fake, tmp_path) as pool:
        context = make_context(REPEATING)
        drafter = HierarchicalDrafter(placement(pool), context.request, DraftDeadline(), NgramDrafter())
        assert (await drafter.propose(context, 1)).tokens == [6]
    assert list(fake.asked[0].guess_tokens) == []


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([], 0),
        ([0.9, 0.9, 0.9], 3),
        ([0.5, 0.3, 0.9], 1),
        ([0.1, 1.0, 1.0], 0),
        ([0.9, 0.21, 1.0, 1.0, 1.0, 1.0], 1),
        ([0.25, 1.0, 1.0], 3),
    ],
)
def test_guesses_go_as_far_as_they_save_more_than_rows(rates: list[float], expected: int) -> None:
    assert best_num_guesses(rates) == expected
