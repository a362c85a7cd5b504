"""Requests' parameters: what is refused, and what an open field becomes."""

import dataclasses
import math
import re
from typing import Any

import numpy as np
import pytest

from paceline.errors import InvalidArgument
from paceline.rpc.model_messages import (
    sampling_from_message,
    sampling_to_message,
    speculation_from_message,
    speculation_to_message,
)
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import (
    Bounds,
    Drafter,
    DraftMode,
    EntropyAdaptive,
    Rule,
    SpeculationParams,
    parse_draft_length,
)

WARM = SamplingParams(temperature=0.8)


@pytest.mark.parametrize("value", [-0.1, math.nan, math.inf])
def test_a_bad_temperature_is_refused_by_name(value: float) -> None:
    with pytest.raises(InvalidArgument, match=r"temperature is .*; it must be a finite number >= 0"):
        SamplingParams(temperature=value)


def test_greedy_requests_are_matched_whatever_the_rule() -> None:
    params = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION)
    assert params.resolved_rule(SamplingParams()) is Rule.MATCH
    assert params.resolved_draft_mode(SamplingParams()) is DraftMode.GREEDY


@pytest.mark.parametrize("draft_mode", [DraftMode.GREEDY, DraftMode.COUPLED])
def test_drafts_without_a_distribution_are_matched(draft_mode: DraftMode) -> None:
    params = SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION, draft_mode=draft_mode
    )
    assert params.resolved_rule(WARM) is Rule.MATCH
    assert params.resolved_draft_mode(WARM) is draft_mode


def test_an_open_draft_mode_follows_the_rule() -> None:
    assert (
        SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION).resolved_draft_mode(
            WARM
        )
        is DraftMode.SAMPLED
    )
    assert (
        SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH).resolved_draft_mode(WARM)
        is DraftMode.COUPLED
    )


def test_noise_of_its_own_is_refused_under_match() -> None:
    with pytest.raises(InvalidArgument, match="draft_mode is 'sampled'; it must be greedy or coupled under match"):
        SpeculationParams(
            drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.MATCH, draft_mode=DraftMode.SAMPLED
        ).resolved_draft_mode(WARM)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"temperature": "hot"}, "temperature is 'hot'; it must be a number"),
        ({"max_tokens": 1.5}, "max_tokens is 1.5; it must be a whole number"),
        ({"max_tokens": None}, "max_tokens is None; it must be a whole number"),
        ({"seed": "1"}, "seed is '1'; it must be a whole number or None"),
        ({"top_k": 2**31}, "top_k is 2147483648; it must be in [0, 2147483647] (0 keeps all)"),
        ({"stop": "end"}, "stop is 'end'; it must be a list or tuple of texts"),
        ({"stop": (1,)}, "stop is (1,); it must be a list or tuple of texts"),
        ({"stop": ("\ud83d",)}, "stop is ('\\ud83d',); it must be texts in UTF-8"),
        ({"stop_token_ids": 3}, "stop_token_ids is 3; it must be a list or tuple of token ids"),
        ({"banned_token_ids": ("a",)}, "banned_token_ids is ('a',); it must be a list or tuple of token ids"),
        ({"allowed_token_ids": (-1,)}, "allowed_token_ids is (-1,); it must be a list or tuple of token ids"),
        ({"logit_bias": [1]}, "logit_bias is [1]; it must be a dict from token ids to numbers"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias is {'a': 1.0}; it must be a dict from token ids to numbers"),
        ({"logit_bias": {1: "a"}}, "logit_bias is {1: 'a'}; it must be a dict from token ids to numbers"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no'; it must be True or False"),
        ({"logprobs": True}, "logprobs is True; it must be a whole number or None"),
    ],
)
def test_a_value_of_another_type_names_its_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}"):
        SamplingParams(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"drafter": 1}, "drafter is 1; it must be a Drafter"),
        ({"drafter": "magic"}, "drafter is 'magic'; it must be one of model, "),
        ({"rule": 1}, "rule is 1; it must be a Rule or None"),
        ({"rule": "both"}, "rule is 'both'; it must be one of match, rejection"),
        ({"draft_mode": "warm"}, "draft_mode is 'warm'; it must be one of sampled, greedy, coupled"),
        (
            {"num_speculative_tokens": 1.5},
            "num_speculative_tokens is 1.5; it must be a whole number, Bounds or EntropyAdaptive",
        ),
        (
            {"num_speculative_tokens": "4"},
            "num_speculative_tokens is '4'; it must be a number in [0, 16], adaptive or entropy",
        ),
        ({"lenience": "1"}, "lenience is '1'; it must be a number"),
        ({"enabled": "off"}, "enabled is 'off'; it must be True or False"),
    ],
)
def test_speculation_of_another_type_names_its_field(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}"):
        SpeculationParams(**fields)


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ({"drafter": "suffix"}, {"drafter": Drafter.SUFFIX}),
        ({"rule": "rejection", "draft_mode": "sampled"}, {"rule": Rule.REJECTION, "draft_mode": DraftMode.SAMPLED}),
        ({"num_speculative_tokens": "adaptive"}, {"num_speculative_tokens": Bounds()}),
        ({"num_speculative_tokens": "entropy"}, {"num_speculative_tokens": EntropyAdaptive()}),
    ],
)
def test_words_do_for_what_they_name(words: dict[str, Any], values: dict[str, Any]) -> None:
    assert SpeculationParams(**words) == SpeculationParams(**values)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"draft_temperature": 0}, "draft_temperature is 0; it must be a finite number > 0"),
        ({"draft_temperature": math.inf}, "draft_temperature is inf; it must be a finite number > 0"),
        ({"draft_temperature": math.nan}, "draft_temperature is nan; it must be a finite number > 0"),
        ({"draft_temperature": "1"}, "draft_temperature is '1'; it must be a number or None"),
    ],
)
def test_a_bad_draft_temperature_is_refused_by_name(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}"):
        SpeculationParams(**fields)


@pytest.mark.parametrize(
    ("draft", "said"),
    [
        (5, "draft_model is 5; it must be a text"),
        (None, "draft_model is None; it must be a text"),
        ("\ud83d", "draft_model is '\\ud83d'; it must be a text in UTF-8"),
        ("x" * 257, "draft_model is '257 characters'; it must be at most 256 characters"),
    ],
)
def test_a_bad_name_of_a_draft_is_refused(draft: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}"):
        SpeculationParams(draft_model=draft)


@pytest.mark.parametrize("drafter", Drafter, ids=lambda drafter: drafter.value)
def test_a_draft_is_named_only_with_drafters_that_ask_a_model(drafter: Drafter) -> None:
    params = SpeculationParams(drafter=drafter, draft_model="x" * 256)
    if drafter.asks_model:
        params.check(WARM)
        assert SpeculationParams(**speculation_from_message(speculation_to_message(params))) == params
    else:
        with pytest.raises(InvalidArgument, match=rf"it must be left out with drafter {drafter.value}, which asks no"):
            params.check(WARM)


@pytest.mark.parametrize(
    ("sampling", "fields"),
    [
        (SamplingParams(), {}),
        (WARM, {"draft_mode": DraftMode.GREEDY}),
        *((WARM, {"drafter": drafter}) for drafter in (Drafter.NGRAM, Drafter.SUFFIX, Drafter.CUSTOM)),
    ],
)
def test_a_draft_temperature_is_refused_where_no_draft_model_draws(
    sampling: SamplingParams, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidArgument, match=r"^draft_temperature is 0.5; it must be left out if no draft model"):
        SpeculationParams(draft_temperature=0.5, **fields).check(sampling)


@pytest.mark.parametrize(
    "fields",
    [{}, {"rule": Rule.REJECTION}, {"draft_mode": DraftMode.COUPLED}, {"drafter": Drafter.HIERARCHICAL}],
)
def test_a_draft_temperature_is_the_drafts_alone(fields: dict[str, Any]) -> None:
    params = SpeculationParams(draft_temperature=0.5, **fields)
    params.check(WARM)
    assert params.draft_sampling(WARM) == dataclasses.replace(WARM, temperature=0.5)
    assert SpeculationParams(**fields).draft_sampling(WARM) == WARM
    assert SpeculationParams(**speculation_from_message(speculation_to_message(params))) == params


LENIENT = SpeculationParams(lenience=0.9)


@pytest.mark.parametrize(
    ("defaults", "asked", "sampling", "rule", "lenience"),
    [
        (LENIENT, {}, WARM, Rule.REJECTION, 0.9),
        (LENIENT, {"drafter": Drafter.MODEL}, WARM, Rule.REJECTION, 0.9),
        (LENIENT, {"drafter": Drafter.NGRAM}, WARM, Rule.MATCH, 1),
        (LENIENT, {"drafter": Drafter.NGRAM}, SamplingParams(), Rule.MATCH, 0.9),
        (LENIENT, {"rule": Rule.MATCH}, WARM, Rule.MATCH, 1),
        (LENIENT, {"draft_mode": DraftMode.COUPLED}, WARM, Rule.MATCH, 1),
        (LENIENT, {}, SamplingParams(beams=2), Rule.MATCH, 1),
        (SpeculationParams(rule=Rule.REJECTION), {"draft_mode": DraftMode.COUPLED}, WARM, Rule.MATCH, 1),
        (SpeculationParams(draft_mode=DraftMode.COUPLED), {"rule": Rule.REJECTION}, WARM, Rule.REJECTION, 1),
        (SpeculationParams(rule=Rule.MATCH), {"draft_mode": DraftMode.SAMPLED}, WARM, Rule.REJECTION, 1),
        (SpeculationParams(rule=Rule.MATCH), {"lenience": 0.5}, WARM, Rule.REJECTION, 0.5),
        (SpeculationParams(draft_mode=DraftMode.COUPLED), {"lenience": 0.5}, WARM, Rule.REJECTION, 0.5),
    ],
)
def test_a_default_gives_way_where_it_does_not_go_with_what_was_asked(
    defaults: SpeculationParams, asked: dict[str, Any], sampling: SamplingParams, rule: Rule, lenience: float
) -> None:
    params = defaults.overruled_by(asked, sampling)
    params.check(sampling)
    assert {name: getattr(params, name) for name in asked} == asked
    assert (params.resolved_rule(sampling), params.lenience) == (rule, lenience)


def test_what_was_asked_never_gives_way() -> None:
    with pytest.raises(InvalidArgument, match=r"^lenience is 0\.9; it must be 1 under match"):
        SpeculationParams().overruled_by({"lenience": 0.9, "rule": Rule.MATCH}, WARM).check(WARM)


@pytest.mark.parametrize("text", ["", "-1", "1.5", "four", "10000", "9" * 5000])
def test_a_draft_length_that_is_none_is_refused_by_name(text: str) -> None:
    assert (parse_draft_length("4"), parse_draft_length("adaptive")) == (4, Bounds())
    with pytest.raises(
        InvalidArgument, match=r"^num_speculative_tokens is .*; it must be a number in \[0, \d+\], adaptive or"
    ):
        parse_draft_length(text)


def test_bounds_and_beta_are_those_given_and_else_the_rules_own() -> None:
    assert parse_draft_length("adaptive", draft_min=9, draft_max=12) == Bounds(9, 12)
    assert parse_draft_length("entropy", draft_max=6, entropy_beta=0.0) == EntropyAdaptive(Bounds(0, 6), 0.0)
    assert parse_draft_length("entropy", draft_min=2) == EntropyAdaptive(Bounds(2, 8), 0.5)
    assert parse_draft_length("entropy") == EntropyAdaptive()


@pytest.mark.parametrize(
    ("text", "fields", "said"),
    [
        (
            "4",
            {"draft_min": 0},
            "draft_min is 0; it must be left out unless num_speculative_tokens is adaptive or entropy",
        ),
        (
            None,
            {"draft_max": 4},
            "draft_max is 4; it must be left out unless num_speculative_tokens is adaptive or entropy",
        ),
        (
            "4",
            {"entropy_beta": 0.0},
            "entropy_beta is 0.0; it must be left out unless num_speculative_tokens is entropy",
        ),
        (
            "adaptive",
            {"entropy_beta": 0.5},
            "entropy_beta is 0.5; it must be left out unless num_speculative_tokens is entropy",
        ),
        ("17", {"draft_max": 4}, "num_speculative_tokens is '17'; it must be a number in [0, 16], adaptive or entropy"),
        ("adaptive", {"draft_max": 17}, "draft_max is 17; it must be in [1, 16]"),
        ("adaptive", {"draft_max": 0}, "draft_max is 0; it must be in [1, 16]"),
        ("adaptive", {"draft_min": 9}, "draft_min is 9; it must be in [0, draft_max], which is 8"),
        ("entropy", {"draft_min": -1}, "draft_min is -1; it must be in [0, draft_max], which is 8"),
        ("entropy", {"draft_max": 4.0}, "draft_max is 4.0; it must be a whole number"),
        ("entropy", {"draft_min": True}, "draft_min is True; it must be a whole number"),
        ("entropy", {"entropy_beta": 1}, "entropy_beta is 1; it must be in [0, 1)"),
        ("entropy", {"entropy_beta": math.nan}, "entropy_beta is nan; it must be in [0, 1)"),
        ("entropy", {"entropy_beta": "0.5"}, "entropy_beta is '0.5'; it must be a number"),
    ],
)
def test_bounds_and_beta_out_of_place_or_range_are_refused_by_name(
    text: str | None, fields: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"^{re.escape(said)}$"):
        parse_draft_length(text, **fields)


def test_numbers_of_numpy_and_lists_are_taken() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(4), seed=np.uint64(7), stop=["a"], stop_token_ids=[np.int32(3)]
    )
    again = sampling_from_message(sampling_to_message(params))
    assert (again.temperature, again.top_k, again.seed, again.stop, again.stop_token_ids) == (0.5, 4, 7, ("a",), (3,))


@pytest.mark.parametrize("params", [SamplingParams, SpeculationParams])
def test_help_explains_every_field(params: type) -> None:
    explained = {line.split(":")[0].strip() for line in (params.__doc__ or "").splitlines() if ": " in line}
    assert [field.name for field in dataclasses.fields(params) if field.name not in explained] == []
