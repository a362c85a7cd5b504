"""A grammar accepts calls of the offered tools, in one spelling, and nothing else; the parser reads all that it accepts."""

import json
import mmap
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer

from coordinator.grammars import Grammars
from coordinator.tokenizer import Tokenizer as ChatTokenizer
from coordinator.tools.call_formats import CALL_FORMATS, HERMES, CallFormat
from coordinator.tools.call_grammar import make_call_grammar
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import Tools
from paceline.engine.models.gguf.header import read_header
from paceline.engine.models.gguf.tokenizer import tokenizer_files
from paceline.engine.models.weights import find_gguf
from paceline.errors import InvalidArgument
from paceline.grammar import Grammar, GrammarEngine, allows
from tests.coordinator.tools.test_call_parser import read, written
from tests.thinking import thinking_tokenizer_files

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 9}, "days": {"type": "integer"}}, "required": ["city"], "additionalProperties": False}  # fmt: skip
TIME = {"properties": {"zone": {"$ref": "#/$defs/zone"}}, "required": ["zone"], "$defs": {"zone": {"enum": ["UTC", "CET"]}}}  # fmt: skip
FUNCTIONS = ({"name": "get", "parameters": WEATHER}, {"name": "get_time", "parameters": TIME}, {"name": "ping"})
GET, GET_TIME, PING = ("get", '{"city": "Paris", "days": 3}'), ("get_time", '{"zone": "UTC"}'), ("ping", "{}")
MARKERS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"]
QWEN = Path.home() / ".cache/paceline/models/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"


@dataclass
class Vocabulary:
    backend: Tokenizer
    ends: list[int]

    @cached_property
    def engine(self) -> LLTokenizer:
        return LLTokenizer(self.backend.to_str(), eos_token=self.ends)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        ids = range(self.engine.vocab_size)
        texts = {self.engine.decode_bytes([token]): token for token in ids if not self.engine.is_special_token(token)}
        return texts | {name.encode(): token for name in MARKERS if (token := self.special_id(name)) is not None}

    @property
    def special_tokens(self) -> dict[str, int]:
        return {name: token for name in MARKERS if (token := self.special_id(name)) is not None}

    def special_id(self, name: str) -> int | None:
        token = self.backend.token_to_id(name)
        return token if token is not None and self.engine.is_special_token(token) else None

    def check(self, grammar: str, text: str) -> str:
        """Returns "yes", "over" if nothing may follow, "more" if something must, or else the first text that is refused."""
        matcher = LLMatcher(self.engine, grammar)
        assert not matcher.is_error(), matcher.get_error()
        special = "|".join(re.escape(name) for name in MARKERS if self.special_id(name) is not None)
        # No other token holds a part of a special one.
        parts = re.split(f"({special})", text) if special else [text]
        for at, part in enumerate(parts):
            rest = part.encode()
            while rest:
                mask = matcher.compute_bitmask()
                pieces = (rest[:length] for length in range(min(len(rest), 32), 0, -1))
                ids = ((piece, self.ids[piece]) for piece in pieces if piece in self.ids)
                found = next(((piece, token) for piece, token in ids if mask[token // 8] >> token % 8 & 1), None)
                if found is None:
                    return rest.decode() + "".join(parts[at + 1 :])
                rest = rest[len(found[0]) :]
                assert matcher.consume_token(found[1])
        return "over" if matcher.is_stopped() else "yes" if matcher.is_accepting() else "more"

    def walk(self, grammar: str, chance: random.Random) -> str:
        """Returns a random text of the grammar; "" if it gets too long."""
        matcher, data = LLMatcher(self.engine, grammar), b""
        names = {token: text for text, token in self.ids.items()}
        for _ in range(400):
            if matcher.is_stopped() or (matcher.is_accepting() and chance.random() < 0.5):
                return data.decode(errors="replace")
            mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            ids = np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
            legal = [token for token in chance.sample(ids, min(len(ids), 500)) if token in names]
            closing = [token for token in legal if names[token][:1] in b'"}]<\n,']
            token = chance.choice(closing if closing and chance.random() < 0.5 else legal)
            data += names[token]
            assert matcher.consume_token(token)
        return ""


def embedded(*special: str) -> Vocabulary:
    path = find_gguf("smollm2-135m")
    assert path is not None
    return read_vocabulary(path, *special)


def read_vocabulary(path: Path, *special: str) -> Vocabulary:
    with path.open("rb") as opened:
        header = read_header(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    backend = Tokenizer.from_str(tokenizer_files(header)["tokenizer.json"].decode())
    backend.add_special_tokens(list(special))
    return Vocabulary(backend, [header.metadata["tokenizer.ggml.eos_token_id"]])


@pytest.fixture(scope="module", params=["text markers", "special markers", "Qwen2.5-Coder"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary:
    if request.param != "Qwen2.5-Coder":
        return embedded(*MARKERS if request.param == "special markers" else ())
    if not QWEN.exists():
        pytest.skip("Qwen2.5-Coder is not downloaded")
    return read_vocabulary(QWEN)


def tools_with(choice: str, parallel: bool = True) -> Tools:
    return Tools(FUNCTIONS, choice, parallel)


each_format = pytest.mark.parametrize("call_format", CALL_FORMATS, ids=lambda each: each.name)


@each_format
def test_calls_are_accepted_and_nothing_behind_them(vocabulary: Vocabulary, call_format: CallFormat) -> None:
    many, one = (written(call_format, calls) for calls in ((GET, GET_TIME, PING), (GET,)))
    if vocabulary.special_id(call_format.begin) is None and call_format.is_bare:
        many, one = (text.removeprefix(call_format.begin) for text in (many, one))
    ends = ("over",) if call_format.calls_end else ("yes",)
    for choice in ("auto", "required"):
        grammar = make_call_grammar(tools_with(choice), call_format, vocabulary.special_tokens).text
        assert vocabulary.check(grammar, many) in ends
        assert vocabulary.check(grammar, one + " and") == " and"
        # Qwen2.5-Coder writes a line break after every call, and must still be able to end.
        if call_format.separator == "\n":
            assert vocabulary.check(grammar, many + "\n") == "yes"
        # No white space but the format's own.
        assert vocabulary.check(grammar, one.replace(": 3", ":3")) not in ("yes", "over", "more")
        single = make_call_grammar(tools_with(choice, parallel=False), call_format, vocabulary.special_tokens).text
        assert vocabulary.check(single, one) == "over"
        assert vocabulary.check(single, many) not in ("yes", "over", "more")
    named = make_call_grammar(tools_with("get"), call_format, vocabulary.special_tokens).text
    assert vocabulary.check(named, one) == "over"
    for other in ("", "hi", written(call_format, [GET_TIME]), many):
        assert vocabulary.check(named, other) != "over"


@each_format
@pytest.mark.parametrize(("name", "arguments"), [
    ("got", '{"city": "Paris"}'), ("get", '{"city": 5}'), ("get", '{"days": 3}'), ("get", '{"city": "Paris", "x": 1}'),
    ("get_time", '{"zone": "EST"}'), ("ping", '{"a": 1}'), ("ping", "[]"),
])  # fmt: skip
def test_other_calls_are_refused(vocabulary: Vocabulary, call_format: CallFormat, name: str, arguments: str) -> None:
    text = written(call_format, [(name, arguments)])
    grammar = make_call_grammar(tools_with("required"), call_format, vocabulary.special_tokens).text
    assert vocabulary.check(grammar, text) not in ("yes", "over", "more")


@each_format
def test_text_is_free_until_a_marker_comes(vocabulary: Vocabulary, call_format: CallFormat) -> None:
    free = make_call_grammar(tools_with("auto"), call_format, vocabulary.special_tokens).text
    required = make_call_grammar(tools_with("required"), call_format, vocabulary.special_tokens).text
    for text in ("Hello.\n\n", '{"name": "got", "age": 3}', "[1]", "<tool", "x ```json\n{}\n``` é🙂"):
        assert vocabulary.check(free, text) == "yes"
        assert vocabulary.check(required, text) not in ("yes", "over")
    assert vocabulary.check(free, "") == "yes"
    assert vocabulary.check(required, "") == "more"
    if vocabulary.special_id(call_format.begin) is not None or not call_format.is_bare:
        assert vocabulary.check(free, f"Hello. {written(call_format, [GET, PING])}") in ("yes", "over")
        assert vocabulary.check(free, f"Hello. {call_format.begin}nope") == "nope"


def test_a_special_marker_leaves_all_other_tokens_to_the_text() -> None:
    """Also special ones, as those around reasoning."""
    vocabulary = embedded(*MARKERS, "<think>")
    grammar = make_call_grammar(tools_with("auto"), HERMES, vocabulary.special_tokens).text
    matcher = LLMatcher(vocabulary.engine, grammar)
    allowed = int.from_bytes(matcher.compute_bitmask(), "little")
    size = vocabulary.engine.vocab_size
    assert [token for token in range(size) if not allowed >> token & 1] == []


@each_format
def test_the_parser_reads_what_the_grammar_writes(vocabulary: Vocabulary, call_format: CallFormat) -> None:
    grammar = make_call_grammar(tools_with("required"), call_format, vocabulary.special_tokens).text
    chance, num_read = random.Random(1), 0
    schemas = {"get": WEATHER, "get_time": TIME, "ping": {"maxProperties": 0}}
    for _ in range(5):
        text = vocabulary.walk(grammar, chance)
        if not text or "\ufffd" in text:
            continue
        content, calls, has_whole_call = read(list(text), call_format, tools_with("required"))
        assert (content, has_whole_call, bool(calls)) == ("", True, True), text
        for name, arguments in calls:
            jsonschema.validate(json.loads(arguments), schemas[name])
            if call_format.begin not in text[1:] and name != "get_time":
                is_odd = "\\" in arguments or "-0" in arguments
                assert json.dumps(json.loads(arguments), ensure_ascii=False) == arguments or is_odd
        num_read += 1
    assert num_read > 0


@pytest.mark.parametrize("is_special", [False, True])
def test_a_marker_that_is_a_token_is_that_token(is_special: bool) -> None:
    """In Qwen's vocabularies it is plain text, but the library matches added tokens in angle brackets by id alone."""
    files = thinking_tokenizer_files(is_special)
    tokenizer, engine = ChatTokenizer(files), GrammarEngine(files["tokenizer.json"], 512, [0])
    call = tokenizer.encode(written(HERMES, [GET]), add_special_tokens=False)
    for choice, text in (("get", ""), ("auto", "Hello. ")):
        guide = engine.grammar(Chats(tokenizer).call_grammar(tools_with(choice), None).text).guide()
        ids = tokenizer.encode(text, add_special_tokens=False)
        assert allows(guide.mask(ids), call[0])
        assert guide.is_over([*ids, *call]) == (choice == "get")


def strict_tool(strict: bool) -> Tools:
    odd = {"type": "object", "propertyNames": {"maxLength": 3}}
    return Tools((FUNCTIONS[0], {"name": "odd", "parameters": odd, "strict": strict}))


# Each marker is text.
NO_TOKENS: dict[str, int] = {}


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    path = find_gguf("smollm2-135m")
    assert path is not None
    with path.open("rb") as opened:
        header = read_header(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
    made = Grammars(tokenizer_files(header)["tokenizer.json"], 49152, [0])
    yield made
    made.close()


async def compile_tools(grammars: Grammars, tools: Tools) -> Grammar:
    made = make_call_grammar(tools, HERMES, NO_TOKENS)
    return await grammars.compile(made.text, parts=made.parts)


async def test_only_a_strict_tool_refuses_what_cant_be_enforced(grammars: Grammars) -> None:
    assert await compile_tools(grammars, strict_tool(False))
    with pytest.raises(InvalidArgument, match=r"of odd can't be enforced: .*propertyNames") as error:
        await compile_tools(grammars, strict_tool(True))
    assert error.value.field == "tools[1].function.parameters"


@pytest.mark.parametrize("schema", [
    {"properties": {"a": 5}}, {"type": "object", "properties": {"a": {"type": "text"}}}, {"$ref": "http://x/y"}, {"properties": {"a": {"$ref": "#/b"}}},
])  # fmt: skip
async def test_a_schema_that_is_none_is_refused_though_not_strict(
    grammars: Grammars, schema: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument, match="of f can't be enforced") as error:
        await compile_tools(grammars, Tools(({"name": "f", "parameters": schema},)))
    assert error.value.field == "tools[0].function.parameters"


def test_no_schema_is_compiled_where_the_grammar_is_written() -> None:
    """Five tools of this kind, 8 kB in all, take a processor for seconds."""
    parts = [{"anyOf": [{"properties": {f"{at}{each}": {"type": "string"}}} for each in "abc"]} for at in range(10)]
    tools = Tools(tuple({"name": f"f{at}", "parameters": {"allOf": parts}} for at in range(5)))
    calls: list[str] = []

    def on_call(frame: object, event: str, called: Any) -> None:
        if event == "c_call" and "LLMatcher" in (name := getattr(called, "__qualname__", "")):
            calls.append(name)

    sys.setprofile(on_call)
    try:
        grammar = make_call_grammar(tools, HERMES, NO_TOKENS)
    finally:
        sys.setprofile(None)
    assert len(grammar.parts) == 5
    assert calls == []


def test_what_a_tool_asks_in_vain_is_named_and_other_tools_are_enforced() -> None:
    agents = {
        "properties": {"a": {"type": "string", "pattern": "(?=x)y"}, "n": {"maxLength": 10.0, "minimum": -(2**63)}}
    }
    odd = {"$schema": "https://json-schema.org/draft-07/schema#"} | agents
    tools = Tools((FUNCTIONS[0], {"name": "odd", "parameters": odd}))
    assert make_call_grammar(tools, HERMES, NO_TOKENS).left_out == ["of odd /properties/a/pattern: look-around"]
    with pytest.raises(InvalidArgument, match="of odd can't be enforced: /properties/a/pattern: look-around") as error:
        make_call_grammar(Tools(({"name": "odd", "parameters": odd, "strict": True},)), HERMES, NO_TOKENS)
    assert error.value.field == "tools[0].function.parameters"


def test_a_clients_own_directions_are_overruled() -> None:
    vocabulary = embedded()
    schema = WEATHER | {"x-guidance": {"whitespace_flexible": True, "lenient": True}}
    grammar = make_call_grammar(
        Tools(({"name": "get", "parameters": schema},), "get"), HERMES, vocabulary.special_tokens
    ).text
    assert vocabulary.check(grammar, written(HERMES, [("get", '{ "city": "a"}')])).startswith(" ")


def test_twenty_tools_compile_quickly(tell: Callable[[str], None]) -> None:
    properties = {key: {"type": kind} for key in "abcd" for kind in ("string", "integer")}
    schema = {"type": "object", "properties": properties, "required": ["a"]}
    tools = Tools(tuple({"name": f"tool_{at}", "parameters": schema} for at in range(20)))
    vocabulary = embedded(*MARKERS)
    LLMatcher(vocabulary.engine, 'start: "a"')
    times = []
    for _ in range(3):
        start = time.perf_counter()
        grammar = make_call_grammar(tools, HERMES, vocabulary.special_tokens).text
        assert not LLMatcher(vocabulary.engine, grammar).is_error()
        times.append(time.perf_counter() - start)
    tell(f"20 tools compile in {1e3 * min(times):.0f} ms")
    assert min(times) < 0.1


@each_format
def test_beside_a_schema_an_answer_is_of_it_or_calls(vocabulary: Vocabulary, call_format: CallFormat) -> None:
    answer = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    if call_format.is_bare:
        with pytest.raises(InvalidArgument, match="beside tools"):
            make_call_grammar(tools_with("auto"), call_format, vocabulary.special_tokens, answer)
        return
    grammar = make_call_grammar(tools_with("auto"), call_format, vocabulary.special_tokens, answer).text
    for text in ('{"sum": 5}', written(call_format, [GET])):
        assert vocabulary.check(grammar, text) in ("yes", "over")
    assert vocabulary.check(grammar, "It is 5.") not in ("yes", "over", "more")
