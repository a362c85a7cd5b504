"""A thought is told apart from its answer by the ids of its marks, and is part of the answer's grammar."""

import json

import numpy as np
import pytest

from coordinator.acceptance import Origin, Outcome
from coordinator.context import Emission, Request
from coordinator.formats import make_grammar
from coordinator.responses import Choice
from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.tools import Tools
from paceline.formats import OutputFormat
from paceline.grammar import GrammarEngine, allows
from paceline.sampling import SamplingParams
from paceline.speculation import SpeculationParams
from tests.thinking import CALL, END_CALL, END_THINK, EOS, EOS_ID, THINK, make_backend, thinking_tokenizer_files

BACKEND = make_backend(has_special_marks=True)
IDS = {name: BACKEND.token_to_id(name) for name in (EOS, THINK, END_THINK, CALL)}
ENDS = (EOS_ID, BACKEND.token_to_id("Z"))
ENGINE = GrammarEngine(BACKEND.to_str().encode(), BACKEND.get_vocab_size(), ENDS)
TOOLS = Tools.parse('[{"type": "function", "function": {"name": "f"}}]')
A_CALL = f'{CALL}\n{{"name": "f", "arguments": {{}}}}\n{END_CALL}'
# Answer, whether the prompt opened the thought, thought and text.
ANSWERS = [
    ("<think>\nHm.\n\nSo\n</think>\n\nYes.", False, "Hm.\n\nSo", "Yes."),
    (" \n<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
    ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
    ("\n\n</think>\n\nYes.\n", True, "", "Yes.\n"),
    ("<think>\n\n</think>\n\n", False, "", ""),
    # Cut.
    ("<think>\nHm. </thi", False, "Hm. </thi", ""),
    ("Hm. \n", True, "Hm.", ""),
    # No thought.
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
        "id", [1], sampling, SpeculationParams(), (), 10_000, 400, is_chat=True, tools=tools, opens_thought=opens,
        chats=Chats(tokenizer),
    )  # fmt: skip
    context = Choice(0, request, tokenizer).context
    return [context.extend(Outcome([token], 0, Origin.TARGET)) for token in tokens if not context.is_finished]


def parts(emissions: list[Emission]) -> tuple[str, str]:
    """Returns the thought and the text."""
    return "".join(each.reasoning for each in emissions), "".join("".join(each.pieces) for each in emissions)


@pytest.mark.parametrize(("answer", "opens", "thought", "text"), ANSWERS)
def test_a_thought_and_its_answer(tokenizer: Tokenizer, answer: str, opens: bool, thought: str, text: str) -> None:
    assert parts(read(tokenizer, ids(answer), opens)) == (thought, text)


@pytest.mark.parametrize(("answer", "opens", "thought", "text"), SPELLED)
def test_a_mark_in_other_tokens_is_text(
    tokenizer: Tokenizer, answer: str, opens: bool, thought: str, text: str
) -> None:
    assert parts(read(tokenizer, spelled(answer), opens)) == (thought, text)


def test_a_spelled_end_does_not_reach_the_answer(tokenizer: Tokenizer) -> None:
    """The grammar goes on with the thought, so JSON begins only after the token."""
    tokens = [*spelled("a</think>b"), IDS[END_THINK], *ids('{"x": 1}')]
    assert parts(read(tokenizer, tokens, True)) == ("a</think>b", '{"x": 1}')


def test_text_held_back_before_a_mark_stays_before_it(tokenizer: Tokenizer) -> None:
    assert parts(read(tokenizer, ids("abx</think>hi"), True, stop=("xy",))) == ("abx", "hi")
    # Nor does a stop string cross the mark.
    assert parts(read(tokenizer, ids("abx</think>yz"), True, stop=("xy",))) == ("abx", "yz")
    half = ids("é")[:1]
    assert parts(read(tokenizer, [*half, *ids("</think>hi")], True)) == ("\ufffd", "hi")


def test_a_stop_string_ends_thought_and_answer(tokenizer: Tokenizer) -> None:
    assert parts(read(tokenizer, ids("axyb</think>c"), True, stop=("xy",))) == ("a", "")
    assert parts(read(tokenizer, ids("a</think>bxyc"), True, stop=("xy",))) == ("a", "b")


@pytest.mark.parametrize(("before", "opens", "thought", "text"), [
    (f"a{CALL}b{END_THINK}\n\n", True, f"a{CALL}b", ""), ("abx", None, "", "abx"),
])  # fmt: skip
def test_a_call_after_text_that_is_held_back(
    tokenizer: Tokenizer, before: str, opens: bool | None, thought: str, text: str
) -> None:
    """Nor does a mark inside a thought begin a call."""
    emissions = read(tokenizer, ids(before + A_CALL), opens, ("xy",), TOOLS)
    assert parts(emissions) == (thought, text)
    assert "".join(each.name + each.arguments for one in emissions for each in one.tool_calls) == "f{}"


def test_a_thought_streams(tokenizer: Tokenizer) -> None:
    emissions = read(tokenizer, ids("a b\n</think>\nc d"), True)
    assert [each.reasoning for each in emissions] == ["a", "", " b", "", "", "", "", "", ""]
    assert ["".join(each.pieces) for each in emissions] == ["", "", "", "", "", "", "c", " ", "d"]


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
def test_what_the_prompt_says_of_a_thought(chats: Chats, prompt: str, opens: bool | None) -> None:
    assert chats.opens_thought(BACKEND.encode(prompt).ids) is opens


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
def test_a_thought_comes_before_a_format(chats: Chats, wanted: OutputFormat, is_opened: bool) -> None:
    grammar = chats.with_thought(make_grammar(wanted), is_opened, ENDS)
    first = allowed(grammar, "")
    if is_opened:
        opening = ""
    else:
        # It may be left out.
        assert first == {IDS[THINK], *ids("{")}
        opening = THINK
    inside = allowed(grammar, opening + "<tool_call> {")
    # Anything but another thought or an end, which would leave no answer.
    assert set(range(BACKEND.get_vocab_size())) - inside == {IDS[THINK], *ENDS}
    assert ids("{")[0] in allowed(grammar, f"{opening}Hm.{END_THINK}\n\n")
    assert not allowed(grammar, f"{opening}{END_THINK}") & {IDS[THINK], *ENDS}
    assert chats.with_thought(make_grammar(wanted), None, ENDS) == make_grammar(wanted)


def test_no_call_begins_inside_a_thought(chats: Chats) -> None:
    tools = Tools.parse(json.dumps([{"type": "function", "function": {"name": "get"}}]))
    grammar = chats.with_thought(chats.call_grammar(tools, None), False, ENDS)
    # After the marker anything may follow inside a thought, only a call outside.
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


def test_masks_of_a_thought_follow_from_the_tokens(chats: Chats) -> None:
    """A guide that has seen a draft cross the thought's end says what a fresh one says."""
    grammar = ENGINE.grammar(chats.with_thought(make_grammar(FORMATS[0]), False, ENDS))
    guide = grammar.guide()
    guide.mask(ids("<think>a</think>\n{"))
    for completion in ("<think>a", "<think>ab", "<think>ab</think>", "<think>ab</think>{"):
        assert np.array_equal(guide.mask(ids(completion)), grammar.guide().mask(ids(completion)))
