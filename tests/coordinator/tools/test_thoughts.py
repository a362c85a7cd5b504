"""A thought is told apart from its answer however the text is split, and is part of the answer's grammar."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.formats import make_grammar
from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import ToolChats
from coordinator.tools.thoughts import ThoughtReader
from coordinator.tools.tools import Tools
from paceline.formats import OutputFormat
from paceline.grammar import GrammarEngine, allows
from tests.thinking import CALL, END_THINK, EOS, EOS_ID, THINK, make_backend, thinking_tokenizer_files

BACKEND = make_backend(has_special_marks=True)
IDS = {name: BACKEND.token_to_id(name) for name in (EOS, THINK, END_THINK, CALL)}
ENDS = (EOS_ID, BACKEND.token_to_id("Z"))
ENGINE = GrammarEngine(BACKEND.to_str().encode(), BACKEND.get_vocab_size(), ENDS)
# Answer, whether the prompt opened the thought, thought and text.
ANSWERS = [
    ("<think>\nHm.\n\nSo\n</think>\n\nYes.", False, "Hm.\n\nSo", "Yes."),
    (" \n<think>Hm.</think>Yes.", False, "Hm.", "Yes."),
    ("Hm.\n</think>\n\nYes.", True, "Hm.", "Yes."),
    ("\n\n</think>\n\nYes.\n", True, "", "Yes.\n"),
    ("<think>\n\n</think>\n\n", False, "", ""),
    # Cut.
    ("<think>\nHm. </thi", False, "Hm. </thi", ""),
    ("Hm. <think> \n", True, "Hm. <think>", ""),
    # No thought, or none at the beginning.
    (" Yes. <think>Hm.</think> No.", False, "", " Yes. <think>Hm.</think> No."),
    ("<thin", False, "", "<thin"),
    ("<thinks>", False, "", "<thinks>"),
    ("<think>a</think>b<think>c</think>", False, "a", "b<think>c</think>"),
    ("", False, "", ""),
    ("", True, "", ""),
]


def read(pieces: list[str], is_opened: bool) -> tuple[str, str]:
    reader = ThoughtReader(is_opened)
    parts = [*(reader.read(each) for each in pieces), reader.finish()]
    return "".join(thought for thought, _ in parts), "".join(text for _, text in parts)


@pytest.mark.parametrize(("answer", "is_opened", "thought", "text"), ANSWERS)
def test_a_thought_and_its_answer(answer: str, is_opened: bool, thought: str, text: str) -> None:
    assert read([answer], is_opened) == (thought, text)
    assert read(list(answer), is_opened) == (thought, text)


@given(st.sampled_from(ANSWERS), st.data())
def test_every_split_gives_the_same(case: tuple[str, bool, str, str], data: st.DataObject) -> None:
    answer, is_opened, thought, text = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(answer)), max_size=5)))
    pieces = [answer[start:end] for start, end in zip([0, *cuts], [*cuts, len(answer)], strict=True)]
    assert read(pieces, is_opened) == (thought, text)


def test_a_thought_streams() -> None:
    reader = ThoughtReader(is_opened=True)
    assert [reader.read(each)[0] for each in ("One ", "two <", "/th", "is", " \n", "x")] == [
        "One", " two", "", " </this", "", " \nx"
    ]  # fmt: skip


@pytest.fixture(scope="module", params=[False, True], ids=["marks are text", "marks are special"])
def chats(request: pytest.FixtureRequest) -> ToolChats:
    return ToolChats(Tokenizer(thinking_tokenizer_files(request.param)))


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
def test_what_the_prompt_says_of_a_thought(chats: ToolChats, prompt: str, opens: bool | None) -> None:
    assert chats.opens_thought(BACKEND.encode(prompt).ids) is opens


def ids(text: str) -> list[int]:
    return list(BACKEND.encode(text).ids)


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
def test_a_thought_comes_before_a_format(chats: ToolChats, wanted: OutputFormat, is_opened: bool) -> None:
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


def test_no_call_begins_inside_a_thought(chats: ToolChats) -> None:
    tools = Tools.parse(json.dumps([{"type": "function", "function": {"name": "get"}}]))
    grammar = chats.with_thought(chats.call_grammar(tools, None), False, ENDS)
    # Behind the marker inside a thought anything goes, outside the call alone.
    assert len(allowed(grammar, f"{THINK}a{CALL}")) > 200
    assert not allowed(grammar, f"{THINK}a") & set(ENDS)
    assert allowed(grammar, f"{THINK}a{END_THINK}b{CALL}") == set(ids("\n"))
    assert allowed(grammar, f"b{CALL}") == set(ids("\n"))


def test_reasoning_tokens_are_counted_with_their_marks(chats: ToolChats) -> None:
    for text, opened, num in (("<think>ab</think>\n\ncd", False, 4), ("ab</think>cd", True, 3), ("abcd", False, 0)):
        reader = chats.reader(None, opened, "id", 0)
        for token in ids(text):
            name = BACKEND.id_to_token(token)
            is_text = name not in (THINK, END_THINK) or token not in reader._thought_marks
            reader.read(token, BACKEND.decode([token], skip_special_tokens=False) if is_text else "")
        assert reader.num_reasoning_tokens == num
        assert reader.take_reasoning() == ("ab" if num else "")


def test_masks_of_a_thought_follow_from_the_tokens(chats: ToolChats) -> None:
    """A guide that has seen a draft cross the thought's end says what a fresh one says."""
    grammar = ENGINE.grammar(chats.with_thought(make_grammar(FORMATS[0]), False, ENDS))
    guide = grammar.guide()
    guide.mask(ids("<think>a</think>\n{"))
    for completion in ("<think>a", "<think>ab", "<think>ab</think>", "<think>ab</think>{"):
        assert np.array_equal(guide.mask(ids(completion)), grammar.guide().mask(ids(completion)))
