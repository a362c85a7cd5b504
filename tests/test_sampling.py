"""Requests' parameters: what is refused, and what an open field becomes."""

import math

import pytest

from paceline.errors import InvalidArgument
from paceline.sampling import Drafter, DraftMode, Rule, SamplingParams, SpeculationParams

WARM = SamplingParams(temperature=0.8)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_bad_temperature_is_refused_by_name(value: float) -> None:
    with pytest.raises(InvalidArgument, match=r"temperature is .*; it must be a finite number >= 0"):
        SamplingParams(temperature=value)


def test_greedy_requests_are_matched_whatever_the_rule() -> None:
    params = SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4, rule=Rule.REJECTION)
    assert params.resolved_rule(SamplingParams()) is Rule.MATCH
    assert params.resolved_draft_mode(SamplingParams()) is DraftMode.GREEDY


@pytest.mark.parametrize("draft_mode", [DraftMode.GREEDY, DraftMode.COUPLED])
def test_drafts_without_a_distribution_are_matched(draft_mode: DraftMode) -> None:
    params = SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4, rule=Rule.REJECTION, draft_mode=draft_mode)
    assert params.resolved_rule(WARM) is Rule.MATCH
    assert params.resolved_draft_mode(WARM) is draft_mode


def test_an_open_draft_mode_follows_the_rule() -> None:
    assert (
        SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4, rule=Rule.REJECTION).resolved_draft_mode(WARM)
        is DraftMode.SAMPLED
    )
    assert (
        SpeculationParams(drafter=Drafter.MODEL, num_draft_tokens=4, rule=Rule.MATCH).resolved_draft_mode(WARM)
        is DraftMode.COUPLED
    )


def test_noise_of_its_own_is_refused_under_match() -> None:
    with pytest.raises(InvalidArgument, match="draft_mode is 'sampled'; it must be greedy or coupled under match"):
        SpeculationParams(
            drafter=Drafter.MODEL, num_draft_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.SAMPLED
        ).resolved_draft_mode(WARM)
