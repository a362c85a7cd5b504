"""Traces through the real services: what they say agrees with what came out, and they cost nothing unasked."""

import time
from itertools import accumulate
from statistics import fmean

import numpy as np
import pytest

from paceline.client import AsyncClient, Chunk, Client, Completion, RoundTrace, TracedDraft
from paceline.rpc.channel import open_channel
from paceline.rpc.generation_messages import make_request
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, EntropyAdaptive, Rule, SpeculationParams
from paceline.theory import tokens_per_round
from paceline.v1 import generation_pb2, generation_pb2_grpc
from tests.conftest import UNLIKE_DRAFT, UNLIKE_TARGET
from tests.hosted import Host
from tests.services import Trio

pytestmark = pytest.mark.slow

PROMPT = [3, 1, 4, 1, 5]
GREEDY = SamplingParams(max_tokens=60, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=60, ignore_eos=True, temperature=0.9, seed=3)
MATCHED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
REJECTED = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, rule=Rule.REJECTION)
WAYS = {
    "match, greedy": (GREEDY, MATCHED),
    "match, sampled": (SAMPLED, MATCHED),
    "rejection": (SAMPLED, REJECTED),
    "entropy": (
        SAMPLED,
        SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=EntropyAdaptive(Bounds(0, 6))),
    ),
    "n-grams": (GREEDY, SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4)),
    "hybrid": (SAMPLED, SpeculationParams(num_speculative_tokens=4, rule=Rule.REJECTION)),
    "off": (GREEDY, SpeculationParams(enabled=False)),
}


async def pieces_of(
    trio: Trio, sampling: SamplingParams, speculation: SpeculationParams, prompt: list[int] = PROMPT
) -> list[Chunk]:
    async with AsyncClient(trio.address) as client:
        return [chunk async for chunk in client.stream(prompt, sampling, speculation, trace=True)]


async def traces_of(
    trio: Trio, sampling: SamplingParams, speculation: SpeculationParams, prompt: list[int] = PROMPT
) -> list[RoundTrace]:
    pieces = await pieces_of(trio, sampling, speculation, prompt)
    return [chunk.trace for chunk in pieces if chunk.trace is not None]


async def messages_of(trio: Trio, trace: bool) -> list[generation_pb2.GenerateResponse]:
    request = make_request(PROMPT, GREEDY, MATCHED, False, request_id="same", trace=trace)
    async with open_channel(trio.address) as channel:
        return [message async for message in generation_pb2_grpc.GenerationStub(channel).Generate(request)]


async def test_unasked_not_a_byte_more_is_on_the_wire(unlike_trio: Trio) -> None:
    untraced, traced = await messages_of(unlike_trio, False), await messages_of(unlike_trio, True)
    assert not any(message.HasField("trace") for message in untraced)
    assert all(message.HasField("trace") for message in traced)
    for message in traced:
        message.ClearField("trace")
    # The last one tells times.
    assert [each.SerializeToString() for each in untraced[:-1]] == [each.SerializeToString() for each in traced[:-1]]


@pytest.mark.parametrize("way", WAYS)
async def test_traces_change_no_output_and_add_up_to_the_figures_of_the_end(way: str, unlike_trio: Trio) -> None:
    plain = await complete(unlike_trio, *WAYS[way])
    pieces = await pieces_of(unlike_trio, *WAYS[way])
    traces, finish = [chunk.trace for chunk in pieces], pieces[-1].finish
    assert plain.token_ids == [token for chunk in pieces for token in chunk.token_ids]
    assert plain.origins == "".join(chunk.origins for chunk in pieces)
    assert plain.traces == []
    figures = finish.speculation
    assert [trace.round for trace in traces] == list(range(figures.rounds + 1))
    assert sum(len(trace.proposed) for trace in traces) == figures.proposed
    assert sum(trace.num_accepted for trace in traces) == figures.accepted
    by_accepted = [sum(trace.num_accepted == n for trace in traces[1:]) for n in range(len(figures.rounds_by_accepted))]
    assert by_accepted == figures.rounds_by_accepted
    assert sum(by_accepted) == figures.rounds
    for chunk in pieces:
        assert chunk.trace.num_accepted == chunk.origins.count("A") == sum(d.accepted for d in chunk.trace.proposed)
        assert [draft.token_id for draft in chunk.trace.proposed][: chunk.trace.num_accepted] == [
            token for token, origin in zip(chunk.token_ids, chunk.origins, strict=True) if origin == "A"
        ]
        assert len(chunk.trace.proposed) <= chunk.trace.draft_tokens
        assert (chunk.trace.drafter == "none") == (not chunk.trace.proposed) == (chunk.trace.reason != "")
    for name in ("draft", "target", "queued"):
        ms = sum(getattr(trace, f"{name}_us") for trace in traces) / 1e3
        assert ms == pytest.approx(getattr(finish.timing, f"{name}_ms"))
    # Entropies are there if the entropy rule looked.
    looked = [trace for trace in traces if trace.entropies]
    assert bool(looked) == (way == "entropy")
    for trace in looked:
        assert len(trace.proposed) <= len(trace.entropies) <= len(trace.proposed) + 1
        assert all(0 <= value <= 1 for value in trace.entropies)


def decided(chunk: Chunk) -> list[TracedDraft]:
    """Up to the first that was rejected, or that ended the text."""
    return chunk.trace.proposed[: len(chunk.token_ids)]


@pytest.mark.parametrize("way", ["match, greedy", "match, sampled", "n-grams"])
async def test_under_match_the_targets_own_choice_stands_beside_each_decided_draft(way: str, unlike_trio: Trio) -> None:
    num_rejected = 0
    for chunk in await pieces_of(unlike_trio, *WAYS[way]):
        for draft, token in zip(decided(chunk), chunk.token_ids, strict=False):
            assert draft.accepted == (draft.token_id == draft.target_id)
            assert (draft.target_id, draft.target_text) == (token, f"t{token}")
            num_rejected += not draft.accepted
        for draft in chunk.trace.proposed:
            assert (draft.q, draft.p, draft.r) == (None, None, None)
            assert draft.text == f"t{draft.token_id}"
        for draft in chunk.trace.proposed[len(chunk.token_ids) :]:
            assert (draft.accepted, draft.target_id, draft.target_text) == (False, None, None)
    assert num_rejected > 0


async def test_under_rejection_the_numbers_decide_each_draft(unlike_trio: Trio) -> None:
    accepted = []
    for chunk in await pieces_of(unlike_trio, *WAYS["rejection"]):
        for draft in decided(chunk):
            assert draft.accepted == (draft.r * draft.q < draft.p)
            assert 0 < draft.q <= 1
            assert 0 <= draft.p <= 1
            assert 0 < draft.r < 1
            accepted.append(draft.accepted)
        for draft in chunk.trace.proposed:
            assert (draft.target_id, draft.target_text) == (None, None)
        for draft in chunk.trace.proposed[len(chunk.token_ids) :]:
            assert (draft.accepted, draft.q, draft.p, draft.r) == (False, None, None, None)
    assert 0.1 < fmean(accepted) < 0.9


async def test_lenience_shows_in_the_comparison(unlike_trio: Trio) -> None:
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4, lenience=0.3)
    drafts = [draft for chunk in await pieces_of(unlike_trio, SAMPLED, speculation) for draft in decided(chunk)]
    assert all(draft.accepted == (draft.r * 0.3 * draft.q < draft.p) for draft in drafts)
    assert any(draft.accepted != (draft.r * draft.q < draft.p) for draft in drafts)


async def test_behind_a_stop_nothing_is_decided(tiny_trio: Trio) -> None:
    [plain] = [await complete(tiny_trio, GREEDY, SpeculationParams(enabled=False))]
    # The first draft of the second round ends the text; the draft is the target, so all of them would be accepted.
    stopped = SamplingParams(max_tokens=60, ignore_eos=True, stop_token_ids=(plain.token_ids[1],))
    pieces = await pieces_of(tiny_trio, stopped, REJECTED)
    last = pieces[-1].trace
    assert pieces[-1].finish.speculation.rounds_by_accepted == [0, 1, 0, 0, 0]
    assert (len(last.proposed), last.num_accepted) == (4, 1)
    assert [draft.accepted for draft in last.proposed] == [True, False, False, False]
    assert [draft.target_id is None for draft in last.proposed] == [False, True, True, True]


async def complete(trio: Trio, sampling: SamplingParams, speculation: SpeculationParams) -> Completion:
    async with AsyncClient(trio.address) as client:
        return await client.complete(PROMPT, sampling, speculation)


async def test_entropies_become_smoothed_ones_and_these_the_length_of_each_round(unlike_trio: Trio) -> None:
    bounds, beta, smoothed = Bounds(1, 6), 0.7, 0.0
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=EntropyAdaptive(bounds, beta))
    lengths = []
    for trace in (await traces_of(unlike_trio, SAMPLED, speculation))[1:]:
        expected = list(accumulate(trace.entropies, lambda old, new: beta * old + (1 - beta) * new, initial=smoothed))
        assert trace.smoothed_entropies == pytest.approx(expected[1:], abs=1e-6)
        ks = [round(bounds.max - (bounds.max - bounds.min) * each) for each in trace.smoothed_entropies]
        assert trace.allowed_draft_tokens == ks
        # Up to the first position that allows no more than there are before it; fewer at the end of the text.
        most = min(trace.draft_tokens, next((i for i, k in enumerate(ks) if i >= k), len(ks)))
        assert len(trace.proposed) == most
        lengths.append(most)
        # Over decided positions: those accepted, and the one behind them.
        smoothed = trace.smoothed_entropies[: trace.num_accepted + 1][-1] if trace.entropies else smoothed
    assert len(set(lengths)) > 2, lengths


@pytest.fixture(scope="module")
def short_trio(host: Host) -> Trio:
    """A draft that holds 32 tokens."""
    return host.trio(UNLIKE_TARGET, (*UNLIKE_DRAFT, "--max-model-len", "32"))


async def test_reasons_say_why_nothing_was_proposed(unlike_trio: Trio, short_trio: Trio) -> None:
    off, ngram = SpeculationParams(enabled=False), SpeculationParams(drafter=Drafter.NGRAM, num_speculative_tokens=4)
    unsure = SpeculationParams(
        drafter=Drafter.MODEL, num_speculative_tokens=EntropyAdaptive(Bounds(0, 1), ema_beta=0.0)
    )
    short = SamplingParams(max_tokens=2, ignore_eos=True)
    # No token comes a second time, so the newest one was never seen before.
    unlike = SamplingParams(max_tokens=8, ignore_eos=True, presence_penalty=2.0, repetition_penalty=100.0)
    reasons = {
        "off": {trace.reason for trace in (await traces_of(unlike_trio, GREEDY, off))[1:]},
        "no match": {trace.reason for trace in await traces_of(unlike_trio, unlike, ngram, [3, 5])},
        "unsure": {trace.reason for trace in await traces_of(unlike_trio, SAMPLED, unsure)},
        "last": (await traces_of(unlike_trio, short, MATCHED))[-1].reason,
        "long": {trace.reason for trace in await traces_of(short_trio, GREEDY, MATCHED)},
        "first": (await traces_of(unlike_trio, short, MATCHED))[0].reason,
    }
    assert reasons["off"] == {"speculation is off"}
    assert "no match" in reasons["no match"]
    assert "the draft model is unsure" in reasons["unsure"]
    assert reasons["last"] == "one token is left to generate"
    assert reasons["first"] == "the prompt's round"
    assert "past the draft model's maximum length, and no match" in reasons["long"]


async def test_a_draft_server_that_is_away_is_named(host: Host) -> None:
    trio = host.start_trio(UNLIKE_TARGET, UNLIKE_DRAFT)
    trio.draft.stop()
    deadline_s = time.monotonic() + 30
    reasons: set[str] = set()
    while not any(reason.startswith("draft server away") for reason in reasons):
        assert time.monotonic() < deadline_s, reasons
        traces = await traces_of(trio, SamplingParams(max_tokens=20, ignore_eos=True), MATCHED)
        reasons |= {trace.reason for trace in traces}
        assert {trace.drafter for trace in traces} <= {"none", "ngram"}
    for service in (trio.coordinator, trio.target):
        service.stop()


async def test_each_of_n_samples_has_traces_of_its_own(unlike_trio: Trio) -> None:
    many = SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.9, seed=3, n=3)
    async with AsyncClient(unlike_trio.address) as client:
        for done in await client.complete_all(PROMPT, many, REJECTED, trace=True):
            assert [trace.round for trace in done.traces] == list(range(done.finish.speculation.rounds + 1))
            assert sum(trace.num_accepted for trace in done.traces) == done.origins.count("A")


def test_the_client_for_threads_gives_traces(tiny_trio: Trio) -> None:
    with Client(tiny_trio.address) as client:
        assert all(chunk.trace is not None for chunk in client.stream(PROMPT, GREEDY, MATCHED, trace=True))
        assert all(chunk.trace is None for chunk in client.stream(PROMPT, GREEDY, MATCHED))


K = 4


async def test_tokens_a_run_are_what_equation_1_expects_from_the_traces_q_and_p(unlike_trio: Trio) -> None:
    """Leviathan et al. 2023: (1 - alpha^(k+1)) / (1 - alpha). alpha is the mean of min(1, p/q) over drafts of q."""
    sampling = SamplingParams(max_tokens=100, temperature=1.0, ignore_eos=True, seed=17, n=32)
    speculation = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=K, rule=Rule.REJECTION)
    async with AsyncClient(unlike_trio.address) as client:
        samples = await client.complete_all(PROMPT, sampling, speculation, trace=True)
    # Rounds that had room for all k drafts and one more token.
    rounds = [trace for sample in samples for trace in sample.traces[1:-2] if len(trace.proposed) == K]
    tokens = np.array([trace.num_accepted + 1 for trace in rounds])
    ratios = np.array(
        [min(1.0, draft.p / draft.q) for trace in rounds for draft in trace.proposed[: trace.num_accepted + 1]]
    )
    unclipped = np.array([draft.p / draft.q for trace in rounds for draft in trace.proposed[: trace.num_accepted + 1]])
    assert len(rounds) > 1000
    expected = tokens_per_round(float(ratios.mean()), K)
    # How far the expectation is off where alpha is, and the mean of what came.
    slope = (tokens_per_round(float(ratios.mean()) + 1e-6, K) - expected) / 1e-6
    error = np.hypot(tokens.std() / len(tokens) ** 0.5, slope * ratios.std() / len(ratios) ** 0.5)
    assert abs(tokens.mean() - expected) < 4 * error
    # Without min(1, .) the mean is near 1 whatever the models: this test can fail.
    assert abs(tokens.mean() - tokens_per_round(min(0.999, float(unclipped.mean())), K)) > 8 * error
