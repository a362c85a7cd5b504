"""What is asked and when: loads, arrivals, the order of turns, variants, random prompts."""

import itertools
import math
from collections import Counter

import pytest

from paceline.errors import InvalidArgument
from paceline.loadtest.workload import (
    ClosedLoop,
    Lengths,
    OpenLoop,
    blocks,
    parse_lengths,
    parse_sweep,
    parse_variants,
    poisson_arrivals,
    synthetic_prompt,
)
from paceline.speculation_params import Bounds, Drafter, EntropyAdaptive

RATE, COUNT = 4.0, 4000


def gaps(rate: float, seed: int) -> list[float]:
    times = [0.0, *itertools.islice(poisson_arrivals(rate, seed), COUNT)]
    return [late - early for early, late in itertools.pairwise(times)]


def test_gaps_between_arrivals_are_exponential() -> None:
    found = gaps(RATE, seed=3)
    assert min(found) > 0
    # The mean's standard error is 1 / (RATE sqrt(COUNT)); six of them, and likewise for a share.
    assert abs(sum(found) / COUNT - 1 / RATE) < 6 / (RATE * math.sqrt(COUNT))
    for quantile in (0.1, 0.5, 0.9):
        limit = -math.log(1 - quantile) / RATE
        share = sum(gap < limit for gap in found) / COUNT
        assert abs(share - quantile) < 6 * math.sqrt(quantile * (1 - quantile) / COUNT)


def test_arrivals_repeat_by_seed_and_scale_by_rate() -> None:
    assert gaps(RATE, seed=3) == gaps(RATE, seed=3) != gaps(RATE, seed=4)
    assert gaps(RATE, seed=3) == pytest.approx([gap / 2 for gap in gaps(RATE / 2, seed=3)])


def test_a_sweep_is_a_list_of_loads() -> None:
    assert parse_sweep("concurrency=1,2,8") == [ClosedLoop(1), ClosedLoop(2), ClosedLoop(8)]
    assert parse_sweep("rate=0.5,3") == [OpenLoop(0.5), OpenLoop(3)]


@pytest.mark.parametrize(
    "text",
    ["", "1,2", "concurrency", "concurrency=", "concurrency=1,", "concurrency=1.5", "speed=1", "rate=x", "rate=1,1"],
)
def test_a_bad_sweep_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--sweep is "):
        parse_sweep(text)


@pytest.mark.parametrize("text", ["concurrency=0", "concurrency=-1", "rate=0", "rate=-2", "rate=nan", "rate=inf"])
def test_a_load_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--(concurrency|rate) is .*must be in"):
        parse_sweep(text)


def test_every_variant_answers_every_request_once_and_each_begins_in_turn() -> None:
    found = list(blocks(3, range(100, 120), 6))
    asked = Counter((part.variant, index) for block in found for part in block for index in part.requests)
    assert asked == Counter(itertools.product(range(3), range(100, 120)))
    assert [block[0].variant for block in found] == [0, 1, 2, 0]
    assert [len(block[0].requests) for block in found] == [6, 6, 6, 2]
    assert all(len({part.requests for part in block}) == 1 for block in found)


def test_a_single_variant_runs_in_one_piece() -> None:
    (block,) = blocks(1, range(1000), 4)
    assert [(part.variant, part.requests) for part in block] == [(0, range(1000))]


def test_variants_say_what_they_change_and_leave_the_rest_to_the_server() -> None:
    assert parse_variants("off, model,ngram:2,3,adaptive,hybrid:entropy,default") == {
        "off": {"enabled": False},
        "model": {"enabled": True, "drafter": Drafter.MODEL},
        "ngram:2": {"enabled": True, "drafter": Drafter.NGRAM, "num_speculative_tokens": 2},
        "3": {"enabled": True, "num_speculative_tokens": 3},
        "adaptive": {"enabled": True, "num_speculative_tokens": Bounds()},
        "hybrid:entropy": {"enabled": True, "drafter": Drafter.HYBRID, "num_speculative_tokens": EntropyAdaptive()},
        "default": {},
    }


@pytest.mark.parametrize("text", ["", "off,", "off,off", "modle", "model:", "model:17", "model:x", "17", "-1", "off:3"])
def test_a_bad_variant_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--compare is "):
        parse_variants(text)


def test_synthetic_prompts_have_their_length_and_are_told_by_their_key() -> None:
    ids = range(5, 90)
    prompt = synthetic_prompt(200, ids, "0 off 1")
    assert len(prompt) == 200
    assert set(prompt) <= set(ids)
    assert len(set(prompt)) > 50
    assert prompt == synthetic_prompt(200, ids, "0 off 1") != synthetic_prompt(200, ids, "0 off 2")


def test_lengths_are_read_and_bounded() -> None:
    assert parse_lengths("512:128") == Lengths(512, 128)
    Lengths(400, 112).check(512)
    with pytest.raises(InvalidArgument, match="at most 512 tokens"):
        Lengths(400, 113).check(512)


@pytest.mark.parametrize("text", ["", "5", ":", "5:", "0:5", "5:0", "-1:5", "a:b", "1:2:3", "1.5:2"])
def test_bad_lengths_are_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="--synthetic is "):
        parse_lengths(text)
