"""Reasoning is told apart from its answer by the ids of its marks, and is part of the answer's grammar."""

import json
import time

import numpy as np
import pytest

from coordinator.acceptance import Origin, Outcome
from coordinator.context import Emission
from coordinator.format_grammars import make_rules
from coordinator.generate_response import Choice
from coordinator.request import Request
from coordinator.stop_strings import StopStrings
from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import Tools
from paceline.errors import InvalidArgument
from paceline.grammar import GrammarEngine, allows, grammar_text
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.thinking import CALL, END_CALL, END_THINK, EOS, EOS_ID, THINK, make_backend, thinking_tokenizer_files

BACKEND = make_backend(has_special_marks=True)
IDS = {name: BACKEND.token_to_id(name) for name in (EOS, THINK, END_THINK, CALL)}
ENDS = (EOS_ID, BACKEND.token_to_id("Z"))
ENGINE = GrammarEngine(BACKEND.to_str().encode(), BACKEND.get_vocab_size(), ENDS)
TOOLS = Tools.parse('[{"type": "function", "function": {"name": "f"}}]')
A_CALL = f'{CALL}\n{{"name": "f", "arguments": {{}}}}\n{END_CALL}'
# Answer, whether the prompt opened the reasoning, reasoning and text.
ANSWERS = [
    ("<think>\nHm.\n\nSo\n</think>\n\nYes.", False, "Hm.\n\nSo", "Yes."),
    (" \n<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
    ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
    ("\n\n</think>\n\nYes.\n", True, "", "Yes.\n"),
    ("<think>\n\n</think>\n\n", False, "", ""),
    # Cut.
    ("<think>\nHm. </thi", False, "Hm. </thi", ""),
    ("Hm. \n", True, "Hm.", ""),
    # No reasoning.
    (" Yes.", False, "", " Yes."),
    (" \n", False, "", " \n"),
    ("", False, "", ""),
    ("", True, "", ""),
]
# Marks in other tokens than their own.
SPELLED = [
    ("Hm.</think>", True, "Hm.</think>", ""),
    ("<think>Hm.", False, "", "<think>Hm."),
]


@pytest.fixture(scope="module", params=[False, True], ids=["marks are text", "marks are special"])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return Tokenizer(thinking_tokenizer_files(request.param))


@pytest.fixture(scope="module")
def chats(tokenizer: Tokenizer) -> Chats:
    return Chats(tokenizer)


def read(
    tokenizer: Tokenizer, tokens: list[int], opens: bool | None, stop: tuple[str, ...] = (), tools: Tools | None = None
) -> list[Emission]:
    """Returns what a context emits of an answer, token by token."""
    sampling = SamplingParams(max_tokens=len(tokens), seed=1, stop=stop)
    request = Request(
        "id", [1], sampling, SpeculationParams(), (), 10_000, 400, is_chat=True, tools=tools, opens_reasoning=opens,
        stop_strings=StopStrings(stop) if stop else None,
    )  # fmt: skip
    context = Choice(0, request, tokenizer, Chats(tokenizer)).context
    return [context.extend(Outcome([token], 0, Origin.TARGET)) for token in tokens if not context.is_finished]


def parts(emissions: list[Emission]) -> tuple[str, str]:
    """Returns the reasoning and the text."""
    return "".join(each.reasoning for each in emissions), "".join("".join(each.pieces) for each in emissions)


@pytest.mark.parametrize(("answer", "opens", "reasoning", "text"), ANSWERS)
def test_reasoning_and_its_answer(tokenizer: Tokenizer, answer: str, opens: bool, reasoning: str, text: str) -> None:
    assert parts(read(tokenizer, ids(answer), opens)) == (reasoning, text)


@pytest.mark.parametrize(("answer", "opens", "reasoning", "text"), SPELLED)
def test_a_mark_in_other_tokens_is_text(
    tokenizer: Tokenizer, answer: str, opens: bool, reasoning: str, text: str
) -> None:
    assert parts(read(tokenizer, spelled(answer), opens)) == (reasoning, text)


def test_a_spelled_end_does_not_reach_the_answer(tokenizer: Tokenizer) -> None:
    """The grammar goes on with the reasoning, so JSON begins only after the token."""
    tokens = [*spelled("a</think>b"), IDS[END_THINK], *ids('{"x": 1}')]
    assert parts(read(tokenizer, tokens, True)) == ("a</think>b", '{"x": 1}')


def test_text_held_back_before_a_mark_stays_before_it(tokenizer: Tokenizer) -> None:
    assert parts(read(tokenizer, ids("abx</think>hi"), True, stop=("xy",))) == ("abx", "hi")
    # Nor does a stop string cross the mark.
    assert parts(read(tokenizer, ids("abx</think>yz"), True, stop=("xy",))) == ("abx", "yz")
    half = ids("é")[:1]
    assert parts(read(tokenizer, [*half, *ids("</think>hi")], True)) == ("\ufffd", "hi")


def test_a_stop_string_ends_reasoning_and_answer(tokenizer: Tokenizer) -> None:
    assert parts(read(tokenizer, ids("axyb</think>c"), True, stop=("xy",))) == ("a", "")
    assert parts(read(tokenizer, ids("a</think>bxyc"), True, stop=("xy",))) == ("a", "b")


@pytest.mark.parametrize(("before", "opens", "reasoning", "text"), [
    (f"a{CALL}b{END_THINK}\n\n", True, f"a{CALL}b", ""), ("abx", None, "", "abx"),
])  # fmt: skip
def test_a_call_after_text_that_is_held_back(
    tokenizer: Tokenizer, before: str, opens: bool | None, reasoning: str, text: str
) -> None:
    """Nor does a mark inside reasoning begin a call."""
    emissions = read(tokenizer, ids(before + A_CALL), opens, ("xy",), TOOLS)
    assert parts(emissions) == (reasoning, text)
    assert "".join(each.name + each.arguments for one in emissions for each in one.tool_calls) == "f{}"


def test_reasoning_streams(tokenizer: Tokenizer) -> None:
    emissions = read(tokenizer, ids("a b\n</think>\nc d"), True)
    assert [each.reasoning for each in emissions] == ["a", "", " b", "", "", "", "", "", ""]
    assert ["".join(each.pieces) for each in emissions] == ["", "", "", "", "", "", "c", " ", "d"]


@pytest.mark.parametrize("opens", [True, False])
def test_white_space_without_end_takes_no_longer_each_time(chats: Chats, opens: bool) -> None:
    reader = chats.reader(None, opens, "id", 0)
    assert reader is not None
    tokens = 10_000
    begin = time.process_time()
    for _ in range(tokens):
        reader.read(IDS[EOS], " " * 100)
    text = reader.finish("x", is_cut=True)
    assert time.process_time() - begin < 2
    expected = " " * 100 * tokens + "x"
    assert (reader.take_reasoning(), text) == (("x", "") if opens else ("", expected))


@pytest.mark.parametrize(
    ("prompt", "opens"),
    [
        ("[user]Hi[assistant]", False),
        ("[user]Hi[assistant]<think>\n", True),
        ("[user]Hi[assistant]<think>\n\n</think>\n\n", None),
        # In the conversation, not at its end.
        ("[user]<think>[assistant]", False),
        ("[assistant]<think>\nHm", False),
        ("", False),
    ],
)
def test_what_the_prompt_says_of_a_reasoning(chats: Chats, prompt: str, opens: bool | None) -> None:
    assert chats.opens_reasoning(BACKEND.encode(prompt).ids, None) is opens


def ids(text: str) -> list[int]:
    return list(BACKEND.encode(text).ids)


def spelled(text: str) -> list[int]:
    """Returns a token for each character."""
    return [token for character in text for token in ids(character)]


def allowed(grammar: str, completion: str) -> set[int]:
    mask = ENGINE.grammar(grammar).guide().mask(ids(completion))
    return {each for each in range(BACKEND.get_vocab_size()) if allows(mask, each)}


FORMATS = [
    OutputFormat(json_object=True, fixed_whitespace=True),
    OutputFormat(regex="\\{x"),
    OutputFormat(choice=("{a", "{b")),
    OutputFormat(grammar='start: "{" y\ny: /[0-9]/'),
]


@pytest.mark.parametrize("wanted", FORMATS)
@pytest.mark.parametrize("is_opened", [False, True])
def test_reasoning_comes_before_a_format(chats: Chats, wanted: OutputFormat, is_opened: bool) -> None:
    grammar = grammar_text(*chats.with_reasoning(make_rules(wanted), is_opened, ENDS))
    first = allowed(grammar, "")
    if is_opened:
        opening = ""
    else:
        # It may be left out.
        assert first == {IDS[THINK], *ids("{")}
        opening = THINK
    inside = allowed(grammar, opening + "<tool_call> {")
    # Anything but another reasoning or an end, which would leave no answer.
    assert set(range(BACKEND.get_vocab_size())) - inside == {IDS[THINK], *ENDS}
    assert ids("{")[0] in allowed(grammar, f"{opening}Hm.{END_THINK}\n\n")
    assert not allowed(grammar, f"{opening}{END_THINK}") & {IDS[THINK], *ENDS}
    assert chats.with_reasoning(make_rules(wanted), None, ENDS) == [make_rules(wanted)]


def test_rules_of_a_client_have_their_limits_behind_a_reasoning(chats: Chats) -> None:
    ambiguous = make_rules(OutputFormat(grammar="start: e\ne: e e | /a/"))
    guide = ENGINE.grammar(grammar_text(*chats.with_reasoning(ambiguous, True, ENDS))).guide()
    with pytest.raises(InvalidArgument, match="reached a limit"):
        guide.mask(ids(f"Hm.{END_THINK}" + "a" * 800))


def test_no_call_begins_inside_a_reasoning(chats: Chats) -> None:
    tools = Tools.parse(json.dumps([{"type": "function", "function": {"name": "get"}}]))
    grammar = grammar_text(*chats.with_reasoning({"lark_grammar": chats.call_grammar(tools, None).text}, False, ENDS))
    # After the marker anything may follow inside reasoning, only a call outside.
    assert len(allowed(grammar, f"{THINK}a{CALL}")) > 200
    assert not allowed(grammar, f"{THINK}a") & set(ENDS)
    assert allowed(grammar, f"{THINK}a{END_THINK}b{CALL}") == set(ids("\n"))
    assert allowed(grammar, f"b{CALL}") == set(ids("\n"))


def test_reasoning_tokens_are_counted_with_their_marks(chats: Chats) -> None:
    for text, opened, num in (("<think>ab</think>\n\ncd", False, 4), ("ab</think>cd", True, 3), ("abcd", False, 0)):
        reader = chats.reader(None, opened, "id", 0)
        for token in ids(text):
            reader.read(token, BACKEND.decode([token], skip_special_tokens=True))
        assert reader.num_reasoning_tokens == num
        assert reader.take_reasoning() == ("ab" if num else "")


def test_masks_of_reasoning_follow_from_the_tokens(chats: Chats) -> None:
    """A guide that has seen a draft cross the reasoning's end says what a fresh one says."""
    grammar = ENGINE.grammar(grammar_text(*chats.with_reasoning(make_rules(FORMATS[0]), False, ENDS)))
    guide = grammar.guide()
    guide.mask(ids("<think>a</think>\n{"))
    for completion in ("<think>a", "<think>ab", "<think>ab</think>", "<think>ab</think>{"):
        assert np.array_equal(guide.mask(ids(completion)), grammar.guide().mask(ids(completion)))
