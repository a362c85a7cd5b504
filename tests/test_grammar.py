"""A guide is a function of the completion: whatever was asked of it before, its masks are those of a fresh one."""

import gc
import itertools
import json
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer

from coordinator.format_grammars import make_grammar
from coordinator.request_reader import RequestReader
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.sequence import Sequence, SequenceOptions
from paceline.engine.models.weights import load_model
from paceline.errors import InvalidArgument, ResourceExhausted, Unavailable
from paceline.grammar import (
    GRAMMAR_ENGINE,
    MAX_BYTES,
    MAX_KEPT_BYTES,
    Grammar,
    GrammarEngine,
    Guide,
    allows,
    compile_grammar,
    is_dead_end,
)
from paceline.output_format import MAX_CHOICES, OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from paceline.v1 import generation_pb2, model_pb2
from tests.thinking import EOS_ID, make_backend

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "tags": {"type": "array", "items": {"enum": ["red", "green"]}}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}  # fmt: skip
# Control tokens of SmolLM2, which are no text.
SPECIAL = set(range(17))
FORMATS = {
    "schema": OutputFormat.of_schema(PERSON),
    "fixed white space": OutputFormat.of_schema(PERSON, fixed_whitespace=True),
    "object": OutputFormat(json_object=True),
    "open schema": OutputFormat.of_schema(
        {"type": "object", "properties": {"a": {"type": "boolean"}}}, fixed_whitespace=True
    ),
    "regex": OutputFormat(regex="(yes|no), [a-c]{2,4}"),
    "choice": OutputFormat(choice=("alpha beta", "alpha gamma", 'a "quote"')),
    "grammar": OutputFormat(grammar='start: item ("," item)*\nitem: /[0-9]{1,3}/ | "(" start ")"'),
}


@pytest.fixture(scope="module")
def engine() -> GrammarEngine:
    model = load_model("smollm2-135m", torch.bfloat16, in_place=True)
    return GrammarEngine(model.tokenizer_files["tokenizer.json"], model.config.vocab_size, model.config.eos_token_ids)


def allowed_ids(grammar: Grammar, completion: list[int]) -> list[int]:
    bits = np.unpackbits(grammar.guide().mask(completion).view(np.uint8), bitorder="little")
    return [int(each) for each in np.flatnonzero(bits)]


@pytest.mark.parametrize("name", FORMATS)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=4, deadline=None)
def test_a_guide_says_what_a_fresh_one_says_after_any_history(engine: GrammarEngine, name: str, seed: int) -> None:
    grammar, coin = engine.grammar(make_grammar(FORMATS[name])), random.Random(seed)
    guide, completion = grammar.guide(), list[int]()
    for _ in range(60):
        what = coin.random()
        ids = allowed_ids(grammar, completion)
        if what < 0.6:
            mask = guide.mask(completion)
            assert [each for each in ids if not allows(mask, each)] == []
            assert int(np.unpackbits(mask.view(np.uint8)).sum()) == len(ids)
            assert guide.is_over(completion) == (set(ids) <= grammar.eos_token_ids)
            assert SPECIAL.isdisjoint(set(ids) - grammar.eos_token_ids)
        elif what < 0.8 and (forced := guide.forced(completion)) is not None:
            # What is forced is the only token that may follow.
            assert ids == [forced]
        else:
            del completion[coin.randrange(len(completion) + 1) :]
            continue
        if further := [each for each in ids if each not in grammar.eos_token_ids]:
            completion.append(coin.choice(further))


def test_a_rejected_draft_leaves_nothing(engine: GrammarEngine) -> None:
    """A matcher that was rolled back took the key for a string value."""
    grammar = engine.grammar(make_grammar(FORMATS["open schema"]))
    guide = grammar.guide()
    # {"name": "Price 185", "data": [{"id": "108211"}, then the draft ` ["`, and ` {"`, `id` in its place.
    before = [107, 18, 1245, 1799, 476, 27148, 216, 33, 40, 37, 1002, 476, 1824, 1799, 933, 39428, 311, 1799, 476, 33, 32,
              40, 34, 33, 33, 24885]  # fmt: skip
    for completion in (before, [*before, 9523], [*before, 9583], [*before, 9583, 311]):
        assert np.array_equal(guide.mask(completion), grammar.guide().mask(completion))


@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=10, deadline=None)
def test_forks_of_a_guide_go_their_own_ways(engine: GrammarEngine, seed: int) -> None:
    grammar, coin = engine.grammar(make_grammar(FORMATS["schema"])), random.Random(seed)
    led: list[tuple[Guide, list[int]]] = [(grammar.guide(), [])]
    for _ in range(60):
        guide, completion = coin.choice(led)
        mask = guide.mask(completion)
        assert np.array_equal(mask, grammar.guide().mask(completion))
        if guide.is_over(completion):
            continue
        if len(led) < 6 and coin.random() < 0.3:
            # Or of fewer tokens than the guide has taken.
            led.append((guide.fork(), completion[: len(completion) - coin.choice((0, 0, 1))]))
        # Of few tokens, so that forks often take the same ones.
        completion.append(coin.choice([each for each in allowed_ids(grammar, completion) if each > max(SPECIAL)][:2]))


def test_a_forked_sequence_keeps_to_its_own_format(engine: GrammarEngine) -> None:
    pool = BlockPool(8, 4, lambda sources, destinations: None)
    ours, other = (engine.grammar(make_grammar(FORMATS[name])) for name in ("regex", "choice"))

    def open_sequence(grammar: Grammar | None) -> Sequence:
        return Sequence(SequenceOptions(SamplingParams(seed=1), 0, (), grammar=grammar), pool)

    parent, first = open_sequence(ours), allowed_ids(ours, [])[0]
    assert parent.guide is not None
    parent.guide.mask([first])
    for grammar in (ours, other):
        child = open_sequence(grammar)
        child.fork(parent, 0)
        assert child.guide is not None
        assert child.guide is not parent.guide
        assert np.array_equal(child.guide.mask([]), grammar.guide().mask([]))
    free = open_sequence(None)
    free.fork(parent, 0)
    assert free.guide is None


def test_where_the_vocabulary_lacks_a_byte_no_token_may_follow_and_the_guide_goes_on(engine: GrammarEngine) -> None:
    grammar = engine.grammar(make_grammar(OutputFormat(regex="(a[\x13\x14]|bcd)")))
    guide, dead, other = grammar.guide(), [81], [82]
    for completion, may_follow in (([], True), (dead, False), (dead, False), (other, True), (dead, False), ([], True)):
        assert is_dead_end(guide.mask(completion), (), ()) != may_follow
        assert not guide.is_over(completion)
        if may_follow:
            assert np.array_equal(guide.mask(completion), grammar.guide().mask(completion))
    assert guide.forced(dead) is None
    assert not guide.may_follow(dead, 83)


def test_an_end_in_the_completion_is_not_taken(engine: GrammarEngine) -> None:
    grammar = engine.grammar(make_grammar(FORMATS["object"]))
    guide, eos = grammar.guide(), min(grammar.eos_token_ids)
    before = guide.mask([])
    assert np.array_equal(guide.mask([eos, 5, 6]), before)
    assert np.array_equal(guide.mask([]), before)


def test_a_token_that_may_not_follow_is_an_error_and_the_guide_goes_on(engine: GrammarEngine) -> None:
    grammar = engine.grammar(make_grammar(FORMATS["regex"]))
    guide = grammar.guide()
    wrong = next(each for each in range(100, 1000) if each not in allowed_ids(grammar, []))
    with pytest.raises(InvalidArgument, match="does not allow the token at 0 of the completion"):
        guide.mask([wrong])
    assert np.array_equal(guide.mask([]), grammar.guide().mask([]))


HOSTILE = {
    "no JSON": (OutputFormat(json_schema="{"), "is not JSON"),
    "no object": (OutputFormat(json_schema="[]"), "an object, or true"),
    "false": (OutputFormat(json_schema="false"), "an object, or true"),
    "deep": (OutputFormat(json_schema="[" * 5000), "is not JSON"),
    "remote reference": (OutputFormat.of_schema({"$ref": "https://example.com/schema.json"}), "example.com"),
    "lost reference": (OutputFormat.of_schema({"$ref": "#/$defs/none"}), "none"),
    "unknown type": (OutputFormat.of_schema({"type": "text"}), "text"),
    "strict keyword": (OutputFormat.of_schema({"type": "object", "propertyNames": {"minLength": 2}}, strict=True), "propertyNames"),
    "look-ahead": (OutputFormat(regex="a(?=b)"), "look-around"),
    "back reference": (OutputFormat(regex=r"(a)\1"), "backreferences"),
    "open bracket": (OutputFormat(regex="[" * 3000), "unclosed"),
    "many groups": (OutputFormat(regex="(" * 20_000), "unclosed group"),
    "no rule": (OutputFormat(grammar="start: missing"), "missing"),
    "no start": (OutputFormat(grammar="begin: \"a\""), "start"),
    "not Lark": (OutputFormat(grammar="%%%"), "lexer error"),
    "endless": (OutputFormat(grammar="start: start"), "no text"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_what_can_not_be_kept_to_is_refused_in_words(engine: GrammarEngine, name: str) -> None:
    wanted, words = HOSTILE[name]
    with pytest.raises(InvalidArgument, match=words):
        engine.grammar(make_grammar(wanted)).guide().mask([])


@pytest.mark.parametrize(("written", "matched"), [
    ('"\\u00e9"', "é"), ('"\\U0001F600"', "😀"), ('"\\xe9\\x41"', "éA"), ('"\\u0041\\n\\r\\t"', "A\n\r\t"), ('"\\\\\\""', '\\"'),
    ('"\\[\\]"', "[]"), ('"\x7f\\u0001"', "\x7f\x01"), ('"a\nb"', "a\nb"), ("[\\u00e9]", "é"), ("[\\U0001F600]", "😀"), ("[\\]]", "]"),
    ("[\\[]", "["), ("[\\\\]", "\\"), ("[&&a]", "&a"), ("[~~]", "~"), ("[+--]", "+,-"), ("[-^]", "^-"), ("[a-c-]", "abc-"),
    ("[\\x61-\\u0063]", "abc"), ('"[\\\\u0041"', "[\\u0041"), ('"#" # "\\u\n', "#"),
])  # fmt: skip
def test_a_character_of_gbnf_is_what_llama_cpp_reads(written: str, matched: str) -> None:
    """A class matches each of the characters, a literal all of them."""
    grammar = of_bytes().grammar(make_grammar(OutputFormat.of_grammar(f"root ::= {written}")))
    for text in matched if written.startswith("[") else [matched]:
        assert grammar.guide().is_over(BYTES.encode(text).ids)
    if written.startswith("["):
        allowed = {BYTES.decode([each]) for each in allowed_ids(grammar, []) if each != EOS_ID}
        assert {each for each in allowed if each.isascii()} == {each for each in matched if each.isascii()}


@pytest.mark.parametrize("text", ['"\\ud800"', '"\\U00110000"', '"\\q"', '"a', "[a", '"\\', "[\\^]"])
def test_what_is_no_character_of_gbnf_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match="is not GBNF"):
        OutputFormat.of_grammar(f"root ::= {text}")


def test_kept_grammars_are_bounded_by_their_bytes() -> None:
    engine = of_bytes()
    first = engine.grammar("start: /first/", num_bytes=MAX_KEPT_BYTES // 2)
    assert engine.grammar("start: /first/") is first
    small = [engine.grammar(f"start: /number {number}/", num_bytes=1 << 20) for number in range(100)]
    assert engine.find("start: /first/") is first
    large = engine.grammar("start: /large/", num_bytes=MAX_KEPT_BYTES // 4)
    # The least recently used ones make room.
    assert [engine.find(f"start: /number {number}/") for number in range(100)] == [None] * 36 + small[36:]
    assert engine.find("start: /first/") is first
    assert engine.find("start: /large/") is large
    assert not first.guide().is_over([])
    assert not first.guide().is_over([])


def test_grammars_of_running_generations_are_bounded_by_their_bytes() -> None:
    engine = of_bytes()
    used = [engine.grammar(f"start: /number {number}/", num_bytes=MAX_BYTES // 8) for number in range(8)]
    with pytest.raises(ResourceExhausted):
        engine.require_room(1)
    del used
    gc.collect()
    engine.require_room(1)


def test_grammars_are_not_shared_between_salts() -> None:
    engine = of_bytes()
    ours = engine.grammar("start: /a/", "ours")
    assert engine.grammar("start: /a/", "ours") is ours
    assert engine.find("start: /a/") is engine.find("start: /a/", "theirs") is None


async def test_another_version_on_the_target_is_refused(engine: GrammarEngine) -> None:
    """A version is part of what a seed means."""
    compiled = engine.grammar(make_grammar(FORMATS["regex"]))

    async def compile_it(*_: object) -> Grammar:
        return compiled

    grammars = cast(Any, SimpleNamespace(compile=compile_it))
    reader = RequestReader(cast(Any, None), grammars, cast(Any, None), SpeculationParams())
    text = make_grammar(FORMATS["regex"])
    for theirs in ("llguidance 0.1", ""):
        model_info = model_pb2.ModelInfo(grammar_engine=theirs)
        with pytest.raises(Unavailable, match=f"on the target server too; it has {theirs or 'none'}"):
            await reader._compile("regex", text, "", [], SamplingParams(), model_info)
    model_info = model_pb2.ModelInfo(grammar_engine=GRAMMAR_ENGINE)
    assert await reader._compile("regex", text, "", [], SamplingParams(), model_info) is compiled


async def test_a_format_that_nests_too_deeply_for_python_is_refused() -> None:
    """Patterns that the library writes alike become one, which has to meet the schemas of all."""
    lazy = itertools.product(("", "?"), repeat=11)
    patterns: dict[str, Any] = {
        "^" + "".join(f"{each}+{sign}" for each, sign in zip("abcdefghijk", signs, strict=True)): {} for signs in lazy
    }

    async def run(encode: Callable[[], str], cost: int) -> str:
        return encode()

    tokenizer: Any = SimpleNamespace(run=run)
    policies: Any = SimpleNamespace(check=lambda _: None)
    reader = RequestReader(tokenizer, cast(Any, None), policies, SpeculationParams())
    schema = json.dumps({"patternProperties": patterns})
    message = generation_pb2.GenerateRequest(format=generation_pb2.OutputFormat(json_schema=schema))
    message.token_ids.ids.append(1)
    model_info = model_pb2.ModelInfo(vocab_size=9, max_model_len=9, grammar_engine=GRAMMAR_ENGINE)
    with pytest.raises(InvalidArgument, match="format nests too deeply"):
        await reader.read(message, model_info)


# A token is a byte.
BYTES = make_backend(has_special_marks=False)


def of_bytes(eos_token_ids: tuple[int, ...] = (EOS_ID,)) -> GrammarEngine:
    return GrammarEngine(BYTES.to_str().encode(), BYTES.get_vocab_size(), eos_token_ids)


def test_a_limit_is_an_error_and_no_end() -> None:
    """After an error the library's mask is EOS alone, as at the end of a text."""
    lark = "start: WORD\nWORD: /[ab]*/ & ~(/[ab]*a[ab]{9}b[ab]*/) & ~(/[ab]*b[ab]{7}a[ab]*/)"
    grammar = of_bytes().grammar(make_grammar(OutputFormat(grammar=lark)))
    guide, coin, completion, letters = grammar.guide(), random.Random(1), list[int](), BYTES.encode("ab").ids
    other = grammar.guide()
    other.mask(letters[:1])

    def go_on() -> None:
        while len(completion) < 100:
            allowed = [each for each in letters if allows(guide.mask(completion), each)]
            assert allowed, f"the text ends after {len(completion)} tokens"
            completion.append(coin.choice(allowed))

    with pytest.raises(InvalidArgument, match="format reached a limit: lexer error"):
        go_on()
    # Other texts of this grammar, begun before or after, are not concerned.
    for each in (guide, other, grammar.guide()):
        assert allows(each.mask(letters), letters[0])
        assert not each.is_over(letters)


def test_texts_that_fill_an_automaton_together_reach_no_limit_and_compile_few_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each alone reaches no limit."""
    word, compiled, letters = "start: WORD\nWORD: /[ab]*a[ab]{9}b[ab]*/", list[str](), BYTES.encode("ab").ids

    def compile_it(tokenizer: LLTokenizer, text: str) -> LLMatcher:
        # Another test's engine may still compile what that has asked for.
        if text == word:
            compiled.append(text)
        return compile_grammar(tokenizer, text)

    monkeypatch.setattr("paceline.grammar.LIMITS", {"max_lexer_states": 100})
    monkeypatch.setattr("paceline.grammar.compile_grammar", compile_it)
    grammar = of_bytes().grammar(word)
    guides, coin, texts = [grammar.guide() for _ in range(8)], random.Random(0), [list[int]() for _ in range(8)]
    for _ in range(30):
        for guide, text in zip(guides, texts, strict=True):
            guide.mask(text)
            text.append(coin.choice(letters))
    assert 1 < len(compiled) <= 1 + 2 * len(guides)


@pytest.mark.parametrize("rule", ["e e | /a/", "e e e | e e | /a/"])
def test_an_ambiguous_text_ends_before_its_tokens_cost_much(rule: str) -> None:
    """The library's work at a place is cubic in its items, which are some for each letter before."""
    guide, text = (
        of_bytes().grammar(make_grammar(OutputFormat(grammar=f"start: e\ne: {rule}"))).guide(),
        BYTES.encode("a" * 800),
    )
    with pytest.raises(InvalidArgument, match="reached a limit"):
        guide.mask(text.ids)


def test_a_long_expression_reaches_no_limit(engine: GrammarEngine) -> None:
    lark = 'start: e\ne: e "+" e | e "*" e | "(" e ")" | /[a-z0-9]+/'
    guide = engine.grammar(make_grammar(OutputFormat(grammar=lark))).guide()
    letters = [allowed_ids(engine.grammar(f"start: {json.dumps(each)}"), [])[0] for each in "x*1+"]
    assert not guide.is_over(letters * 99 + letters[:1])
    assert guide.mask(letters * 99 + letters[:1]).any()


def test_the_most_choices_can_be_written() -> None:
    backend = make_backend(has_special_marks=False)
    engine = GrammarEngine(backend.to_str().encode(), backend.get_vocab_size(), (EOS_ID,))
    texts = tuple(f"{at} is the number" for at in range(MAX_CHOICES))
    guide = engine.grammar(make_grammar(OutputFormat(choice=texts))).guide()
    completion = backend.encode(texts[-1], add_special_tokens=False).ids
    assert all(guide.may_follow(completion[:at], token) for at, token in enumerate(completion))
    assert guide.is_over(completion)


def test_every_end_of_the_model_may_end_a_text() -> None:
    ends = (EOS_ID, *BYTES.encode("XY").ids)
    grammar = of_bytes(ends).grammar(make_grammar(OutputFormat(regex="[a-c]+")))
    guide, letters = grammar.guide(), BYTES.encode("abc").ids
    assert sorted(allowed_ids(grammar, letters)) == sorted((*letters, *ends))
    # Nothing is taken after any of them.
    for end in ends:
        assert np.array_equal(guide.mask([*letters, end]), guide.mask(letters))
