"""The arithmetic of beam search is transformers', on a tiny random model, for many widths, penalties and ends."""

from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from transformers import LlamaForCausalLM

from coordinator.beams.hypotheses import BeamRules, Beams, Hypothesis, Tokens
from coordinator.beams.hypothesis_sequences import TargetBeams, Verified
from coordinator.beams.search import paths_of, search
from coordinator.format_grammars import make_grammar
from coordinator.remote.branches import Branches, common_length, score
from coordinator.stats import GenerationStats
from paceline.engine.models.dummy import dummy_config, make_dummy
from paceline.engine.models.weights import load_model
from paceline.grammar import Grammar, GrammarEngine
from paceline.output_format import OutputFormat
from paceline.rpc.model_messages import floats_to_bytes
from paceline.v1 import verify_pb2
from tests.coordinator.contexts import make_context
from tests.end_to_end.beam_oracle import allowed_ids, slow_search
from tests.end_to_end.tiny_oracle import one_thread

NAME = "tiny-32-a"


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    model = LlamaForCausalLM(dummy_config(NAME)).float().eval()
    model.load_state_dict(make_dummy(NAME, torch.float32)[1], strict=False)
    # None below would mean the configuration's own.
    model.generation_config.eos_token_id = None
    return model


@torch.inference_mode()
def ours(model: LlamaForCausalLM, prompt: list[int], rules: BeamRules) -> list[int]:
    beams = Beams(rules)
    while not beams.is_over:
        inputs = torch.tensor([[*prompt, *each.tokens] for each in beams.live])
        rows = model(inputs).logits[:, -1].log_softmax(-1).numpy()
        order = np.argsort(-rows, axis=-1, kind="stable")[:, : rules.num_next]
        beams.step([[(int(token), float(row[token])) for token in best] for row, best in zip(rows, order, strict=True)])
    return list(beams.best.tokens)


@torch.inference_mode()
def theirs(model: LlamaForCausalLM, prompt: list[int], rules: BeamRules) -> list[int]:
    ends = sorted(rules.ending_ids)
    out = model.generate(
        torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), num_beams=rules.width, do_sample=False, length_penalty=rules.length_penalty,
        max_new_tokens=rules.max_tokens, eos_token_id=ends or None, pad_token_id=31,
    )  # fmt: skip
    tokens = out[0, len(prompt) :].tolist()
    end = next((index + 1 for index, token in enumerate(tokens) if token in rules.ending_ids), len(tokens))
    return tokens[:end]


@pytest.mark.parametrize("width", [2, 3, 4, 8])
@pytest.mark.parametrize("ends", [(), (5,), (3, 9, 17)])
def test_hypotheses_are_those_of_transformers(model: LlamaForCausalLM, width: int, ends: tuple[int, ...]) -> None:
    rng = np.random.default_rng(width)
    lengths = set()
    with one_thread():
        for penalty in (-1.0, 0.0, 0.6, 1.0, 2.0):
            prompt = rng.integers(0, 32, 6).tolist()
            rules = BeamRules(width, penalty, frozenset(ends), 12)
            found = ours(model, prompt, rules)
            assert found == theirs(model, prompt, rules), rules
            lengths.add(len(found))
    # Where a text can end, some ends are among these.
    assert (len(lengths) > 1) == bool(ends)


FORMATS = {
    "choice": OutputFormat(choice=("alpha beta", "alpha gamma", "delta", "de facto", "del", "a")),
    "regex": OutputFormat(regex="[a-e ]{2,9}[0-9]{1,2}"),
    "compact": OutputFormat.of_schema({"type": "object", "properties": {"a": {"enum": [1, 12, "b", None]}}, "required": ["a"]}),
    "many ends": OutputFormat(regex="x[a-z]{1,3}|yes"),
    # SmolLM2's vocabulary lacks the first bytes of these characters. The library finds a token for the last one, and refuses it.
    "dead ends": OutputFormat(regex="a([\x13\x14]|c[\x13\x14]{2}|cd|dd{0,4})|b\U00050000"),
    "nothing but dead ends": OutputFormat(regex="a[\x13\x14]|b\U00050000"),
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> GrammarEngine:
    model = load_model("smollm2-135m", torch.bfloat16, in_place=True)
    return GrammarEngine(model.tokenizer_files["tokenizer.json"], model.config.vocab_size, model.config.eos_token_ids)


def drawn_logits(texts: list[Tokens]) -> NDArray[np.float64]:
    """A model without weights: any logits, the same for the same text."""
    return np.stack([2 * np.random.default_rng([1, *text]).standard_normal(49152) for text in texts])


def guided_search(grammar: Grammar, rules: BeamRules) -> list[int] | None:
    """As with a target that masks and sends its `num_next` likeliest tokens."""
    beams = Beams(rules, [Hypothesis(guide=grammar.guide())])
    while not beams.is_over:
        next_tokens = []
        for text, row in zip(beams.live, drawn_logits([each.tokens for each in beams.live]), strict=True):
            ids = allowed_ids(grammar, text.tokens)
            logprobs = log_softmax(row[ids]) if len(ids) else row[ids]
            best = np.argsort(-logprobs, kind="stable")[: rules.num_next]
            next_tokens.append([(int(ids[index]), float(logprobs[index])) for index in best])
        beams.step(next_tokens)
    return list(beams.best.tokens) if beams.finished else None


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("width", [2, 4, 10])
def test_hypotheses_under_a_format_are_those_of_a_slow_search(engine: GrammarEngine, name: str, width: int) -> None:
    grammar = engine.grammar(make_grammar(FORMATS[name]))
    for penalty in (-1.0, 0.0, 1.0, 2.0):
        for max_tokens in (2, 3, 12):
            rules = BeamRules(width, penalty, grammar.eos_token_ids, max_tokens)
            expected = slow_search(drawn_logits, grammar, width, penalty, rules.ending_ids, max_tokens)
            assert guided_search(grammar, rules) == expected, rules
            assert (expected is None) == (name == "nothing but dead ends")


def test_paths_are_the_longest_of_live_hypotheses_and_drafts() -> None:
    live: list[Tokens] = [(1,), (2,), (3,)]
    levels: list[list[Tokens]] = [[(1, 4), (1, 5), (2, 6)], [(1, 4, 7), (1, 4, 8), (2, 6, 9)]]
    assert paths_of(live, levels) == [(3,), (1, 5), (1, 4, 7), (1, 4, 8), (2, 6, 9)]
    assert paths_of(live, []) == live


def test_common_length_counts_what_both_begin_with() -> None:
    for length in range(6):
        assert common_length((1, 2, 3, 4, 5), (*(1, 2, 3, 4, 5)[:length], 9, 9)) == length
    assert common_length((), (1,)) == 0
    assert common_length((1, 2), (1, 2, 3)) == 2


async def test_what_a_format_excludes_is_no_candidate() -> None:
    """A masked row's likeliest tokens may be fewer than those asked for; at a dead end they say nothing."""
    answer = verify_pb2.VerifyResult(first_invalid_position=2)
    answer.logprobs.top_token_ids.extend([5, 6, 7, 8, 9, 10])
    answer.logprobs.top = floats_to_bytes(np.array([-0.7, -0.7, 0, -np.inf, -0.7, -0.7], np.float32))

    async def verify(*arguments: object) -> tuple[list[int], verify_pb2.VerifyResult]:
        return [2, 3], answer

    async def retry(timeout_s: float, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()

    placement, sequence = SimpleNamespace(retry=retry), SimpleNamespace(truncate=lambda length: None, verify=verify)
    scored = await score(cast(Any, placement), cast(Any, sequence), [1, 2, 3], num_drafts=2, num_next=2, timeout_s=1)
    assert [[token for token, _ in row] for row in scored.next_tokens] == [[5, 6], [7], []]


class ByTable:
    """A target that finds the same tokens likeliest behind every hypothesis, and keeps what happened in order."""

    def __init__(self, happened: list[str]) -> None:
        self._happened = happened

    async def verify(
        self, paths: Sequence[Tokens], num_decided: int, wanted: Collection[Tokens], num_next: int
    ) -> Verified:
        self._happened.append("verified")
        return Verified({path: [(token, -1.0 - token) for token in range(num_next)] for path in paths})

    def release(self) -> None:
        pass


async def test_a_prompt_counts_as_read_long_before_the_search_ends() -> None:
    """Beside a prompt that is being read, others measure nothing."""
    context, happened = make_context([1, 2], max_tokens=3), list[str]()
    context.request = replace(context.request, sampling=replace(context.request.sampling, beams=2))
    target = cast(TargetBeams, ByTable(happened))
    rounds = search(context, None, target, GenerationStats(), lambda: happened.append("read"))
    assert len([emission async for emission in rounds]) == 1
    assert happened == ["verified", "read"] * 3


def test_what_is_no_longer_needed_is_released_before_forks_take_a_state() -> None:
    sent: list[str] = []

    def sequence() -> Any:
        def fork(length: int) -> Any:
            sent.append("fork")
            return sequence()

        return SimpleNamespace(
            length=9, fork=fork, truncate=lambda length: None, release=lambda: sent.append("release")
        )

    branches: Branches = Branches(sequence(), 5)
    branches.take([(1,), (2,)])
    sent.clear()
    branches.take([(1, 3), (1, 4)])
    assert sent == ["release", "fork"]
