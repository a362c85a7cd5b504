"""Where a generation ends, token by token, and that what lies behind the end never was."""

import time

import pytest

from coordinator.acceptance import Origin, Outcome, Proposal, VerifyResult
from coordinator.context import Context, Emission, FinishReason
from coordinator.request import Request
from coordinator.stats import GenerationStats, Round
from coordinator.stop_strings import StopStrings
from coordinator.tokenizer import Tokenizer
from paceline.client import AsyncClient
from paceline.engine.models.dummy import dummy_tokenizer_files
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.services import Trio

PROMPT = [9, 8, 7]
EOS = (2, 3)
# Four drafts accepted and a bonus token.
BLOCK = [10, 11, 12, 13, 14]


def finished(proposal: Proposal, verify_result: VerifyResult, outcome: Outcome) -> Round:
    now_s = time.perf_counter()
    return Round(proposal, verify_result, outcome, now_s, now_s, now_s)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Token i is the word "ti"."""
    return Tokenizer(dummy_tokenizer_files(64))


def make_context(tokenizer: Tokenizer, max_length: int = 100, **sampling: object) -> Context:
    params = SamplingParams(seed=1, **sampling)  # type: ignore[arg-type]
    request = Request(
        "id", PROMPT, params, SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4), EOS, max_length, 64
    )
    return Context(request, tokenizer.stream(StopStrings(params.stop)))


def accepted_block(tokens: list[int]) -> Outcome:
    return Outcome(tokens, len(tokens) - 1, Origin.BONUS)


def text(emission: Emission) -> str:
    assert len(emission.pieces) == len(emission.tokens), "one piece of text for each token"
    return "".join(emission.pieces)


@pytest.mark.parametrize("max_length", [len(PROMPT), 100])
def test_nothing_comes_out_of_a_context_that_only_reads_its_prompt(tokenizer: Tokenizer, max_length: int) -> None:
    context = make_context(tokenizer, max_length, max_tokens=0)
    emission = context.extend(accepted_block(BLOCK[:1]))
    assert (emission.tokens, emission.pieces, emission.origins, emission.is_last) == ([], [], [], True)
    assert context.finish_reason is FinishReason.LENGTH
    assert context.tokens == PROMPT


@pytest.mark.parametrize("eos", EOS)
@pytest.mark.parametrize("index", range(5))
def test_any_eos_inside_an_accepted_block_ends_it_there(tokenizer: Tokenizer, eos: int, index: int) -> None:
    context = make_context(tokenizer)
    block = [*BLOCK[:index], eos, *BLOCK[index + 1 :]]
    emission = context.extend(accepted_block(block))
    assert context.finish_reason is FinishReason.STOP
    assert emission.tokens == block[: index + 1]
    assert context.tokens == PROMPT + emission.tokens
    assert emission.origins == ([Origin.ACCEPTED] * 4 + [Origin.BONUS])[: index + 1]
    assert text(emission).split() == [f"t{token}" for token in BLOCK[:index]]


def test_stop_token_ends_like_eos_and_other_tokens_do_not(tokenizer: Tokenizer) -> None:
    context = make_context(tokenizer, stop_token_ids=(12, 40))
    first = context.extend(accepted_block([20, 21]))
    assert (first.tokens, first.is_last) == ([20, 21], False)
    last = context.extend(accepted_block(BLOCK))
    assert (last.tokens, last.is_last) == ([10, 11, 12], True)
    assert context.finish_reason is FinishReason.STOP


def test_ignore_eos_passes_eos_by_but_not_stop_tokens(tokenizer: Tokenizer) -> None:
    context = make_context(tokenizer, ignore_eos=True, stop_token_ids=(12,))
    emission = context.extend(accepted_block([2, 3, 11, 12, 13]))
    assert emission.tokens == [2, 3, 11, 12]
    assert text(emission).split() == ["t2", "t3", "t11"]


@pytest.mark.parametrize("max_tokens", range(1, 6))
def test_max_tokens_inside_an_accepted_block_ends_it_there(tokenizer: Tokenizer, max_tokens: int) -> None:
    context = make_context(tokenizer, max_tokens=max_tokens)
    emission = context.extend(accepted_block(BLOCK))
    assert emission.tokens == BLOCK[:max_tokens]
    assert context.num_generated == max_tokens
    assert context.finish_reason is FinishReason.LENGTH


def test_model_length_ends_where_max_tokens_would_not(tokenizer: Tokenizer) -> None:
    context = make_context(tokenizer, max_length=len(PROMPT) + 2, max_tokens=50)
    assert context.extend(accepted_block(BLOCK)).tokens == BLOCK[:2]
    assert context.finish_reason is FinishReason.LENGTH


def test_eos_as_the_last_allowed_token_is_a_stop(tokenizer: Tokenizer) -> None:
    context = make_context(tokenizer, max_tokens=2)
    context.extend(accepted_block([10, 2]))
    assert context.finish_reason is FinishReason.STOP


def test_stop_string_ends_with_the_token_that_completes_it(tokenizer: Tokenizer) -> None:
    context = make_context(tokenizer, stop=("t11 t12",))
    emission = context.extend(accepted_block(BLOCK))
    assert emission.tokens == [10, 11, 12]
    assert text(emission) == "t10 "
    assert context.finish_reason is FinishReason.STOP


@pytest.mark.parametrize("stop", ["t11 t12", "t12", ""])
def test_the_finish_names_the_stop_string_that_ended_the_text(tokenizer: Tokenizer, stop: str) -> None:
    context = make_context(tokenizer, stop=("t9", "t12 t99", *filter(None, [stop])), max_tokens=4)
    context.extend(accepted_block(BLOCK))
    finish = GenerationStats().finish(context)
    assert (finish.matched_stop, finish.reason) == (stop, "stop" if stop else "length")


@pytest.mark.parametrize(
    ("max_length", "max_tokens", "eos", "is_full"),
    [(5, 3, False, True), (5, 2, False, False), (5, 3, True, False), (3, 1, False, True), (3, 0, False, False)],
    ids=["more than there is room for", "the room", "an end", "no room", "only reads the prompt"],
)
def test_the_finish_tells_a_full_context_from_max_tokens(
    tokenizer: Tokenizer, max_length: int, max_tokens: int, eos: bool, is_full: bool
) -> None:
    context = make_context(tokenizer, max_length, max_tokens=max_tokens)
    context.extend(accepted_block([10, 2, 12] if eos else BLOCK))
    finish = GenerationStats().finish(context)
    assert (finish.context_full, finish.reason) == (is_full, "stop" if eos else "length")


def test_stop_string_before_min_tokens_is_text_like_any_other(tokenizer: Tokenizer) -> None:
    context = make_context(tokenizer, stop=("t11",), min_tokens=4)
    emission = context.extend(accepted_block([10, 11, 12, 11, 13, 14]))
    assert emission.tokens == [10, 11, 12, 11]
    assert text(emission) == "t10 t11 t12 "


def test_held_back_text_comes_out_when_the_length_ends_it(tokenizer: Tokenizer) -> None:
    context = make_context(tokenizer, stop=("t12 t99",), max_tokens=3)
    emission = context.extend(accepted_block(BLOCK))
    assert text(emission) == "t10 t11 t12"
    assert emission.is_last


def test_drafts_behind_the_end_are_not_counted_as_accepted(tokenizer: Tokenizer) -> None:
    context, stats = make_context(tokenizer), GenerationStats()
    first = Outcome([20], 0, Origin.TARGET)
    stats.count(finished(Proposal(), VerifyResult([20]), first), context.extend(first))
    block = [10, 11, 2, 13, 14]
    outcome = accepted_block(block)
    proposal = Proposal(block[:4])
    stats.count(finished(proposal, VerifyResult(block), outcome), context.extend(outcome))
    assert (stats.proposed_per_position, stats.accepted_per_position) == ([1, 1, 1, 1], [1, 1, 1, 0])
    assert (stats.rounds, stats.mean_acceptance_length) == (1, 3.0)


def test_drafts_behind_a_rejection_are_counted_as_proposed(tokenizer: Tokenizer) -> None:
    context, stats = make_context(tokenizer), GenerationStats()
    for outcome, drafts in [
        (Outcome([20], 0, Origin.TARGET), []),
        (Outcome([10, 30], 1, Origin.RECOVERED), [10, 11, 12]),
        (Outcome([31], 0, Origin.RECOVERED), [10, 11]),
    ]:
        emission = context.extend(outcome)
        stats.count(finished(Proposal(drafts), VerifyResult([0]), outcome), emission)
    assert (stats.proposed_per_position, stats.accepted_per_position) == ([2, 2, 1], [1, 0, 0])
    assert (stats.proposed, stats.accepted, stats.rounds, stats.mean_acceptance_length) == (5, 1, 2, 1.5)


@pytest.mark.parametrize(("max_tokens", "wanted"), [(2, 0), (3, 1), (6, 4), (50, 4)])
def test_no_more_is_drafted_than_may_still_come_out(tokenizer: Tokenizer, max_tokens: int, wanted: int) -> None:
    context = make_context(tokenizer, max_tokens=max_tokens)
    context.extend(Outcome([10], 0, Origin.TARGET))
    assert min(4, context.draft_room) == wanted


@pytest.mark.parametrize("enabled", [True, False], ids=["speculating", "plain"])
async def test_min_tokens_keeps_stop_tokens_out_until_then(tiny_trio: Trio, enabled: bool) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, enabled=enabled)
    async with AsyncClient(tiny_trio.address) as client:
        free = await client.complete(PROMPT, SamplingParams(max_tokens=40, ignore_eos=True), speculation)
        # The greedy text runs into each of these tokens for the first time.
        news = [i for i, token in enumerate(free.token_ids) if i > 6 and token not in free.token_ids[:i]]
        assert len(news) > 3
        for index in news[:4]:
            stop = (free.token_ids[index],)
            allowed = SamplingParams(max_tokens=40, min_tokens=index, stop_token_ids=stop, ignore_eos=True)
            ends = await client.complete(PROMPT, allowed, speculation)
            assert ends.token_ids == free.token_ids[: index + 1]
            banned = SamplingParams(max_tokens=40, min_tokens=index + 1, stop_token_ids=stop, ignore_eos=True)
            goes_on = await client.complete(PROMPT, banned, speculation)
            assert goes_on.token_ids[:index] == free.token_ids[:index]
            assert len(goes_on.token_ids) > index + 1
            assert goes_on.token_ids[index] != stop[0]


@pytest.mark.parametrize("enabled", [True, False], ids=["speculating", "plain"])
async def test_stop_token_ends_the_text_at_its_first_occurrence(tiny_trio: Trio, enabled: bool) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, enabled=enabled)
    async with AsyncClient(tiny_trio.address) as client:
        free = await client.complete(PROMPT, SamplingParams(max_tokens=20, ignore_eos=True), speculation)
        for token in dict.fromkeys(free.token_ids):
            sampling = SamplingParams(max_tokens=20, stop_token_ids=(token,), ignore_eos=True)
            stopped = await client.complete(PROMPT, sampling, speculation)
            end = free.token_ids.index(token) + 1
            assert stopped.token_ids == free.token_ids[:end]
            assert stopped.finish is not None
            assert (stopped.finish.reason, stopped.finish.completion_tokens) == ("stop", end)
            assert stopped.finish.speculation.accepted == stopped.origins.count("A")
