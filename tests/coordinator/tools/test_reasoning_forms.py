"""Each form of reasoning is found by asking its template, read from any stream, and part of the grammar."""

import json
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from coordinator.chat_template import NEXT_TURN
from coordinator.format_grammars import make_rules
from coordinator.reasoning_marks import PARTS, Messages, ReasoningMarks, find_marks
from coordinator.stop_strings import StopStrings
from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import Tools
from coordinator.tools.tool_messages import Message
from paceline.grammar import GrammarEngine, allows, grammar_text
from paceline.output_format import OutputFormat

EOS = "<eos>"
QUESTION = Message("user", "Why?")
THINK = ReasoningMarks("<think>", "</think>", key="reasoning_content")


@dataclass(frozen=True)
class Form:
    """`answer`: what the model writes, of which `reasoning` and "Yes." remain. `history`: how the template repeats it."""

    turns: str
    opening: str
    marks: ReasoningMarks
    answer: str
    # Special tokens of the vocabulary, and those that are part of the text.
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    opens: bool | None = False
    history: str = ""
    start: str = "<|{{ m.role }}|>\n"
    system: str = ""


# The reasoning of the last turn alone, an empty one before other answers.
LAST = "{% if m.reasoning_content and loop.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content }}"
GLM = (
    "{% set r = m.reasoning_content or '' %}{% set c = m.content %}{% if '</think>' in c %}"
    "{% set r = c.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{% if m.role == 'assistant' %}<think>{{ r if loop.last }}</think>\n{% endif %}{{ c.strip() }}"
)
PARTED = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{% if p.type == 'thinking' %}[THINK]{{ p.thinking }}"
    "[/THINK]{% else %}{{ p.text }}{% endif %}{% endfor %}{% endif %}"
)
CALLED = (
    "{% if m.reasoning_content and m.tool_calls %}<|channel>thought\n{{ m.reasoning_content }}\n<channel|>{% endif %}"
    "{% for c in m.tool_calls or [] %}<|call>{{ c.function.name }}<call|>{% endfor %}{{ m.content }}"
)
FRAMED = (
    "{% if m.role == 'assistant' %}{% if m.reasoning_content %}<|START_THINKING|>{{ m.reasoning_content }}<|END_THINKING|>"
    "{% endif %}<|START_TEXT|>{{ m.content }}<|END_TEXT|>{% else %}{{ m.content }}{% endif %}"
)
ADDRESSED = (
    "{% if m.role == 'assistant' %}{% if m.reasoning %} to=self<|message|>{{ m.reasoning }}<|eom|><|start|>assistant{% endif %}"
    " to=user<|message|>{{ m.content }}{% else %}<|message|>{{ m.content }}{% endif %}<|eot|>"
)
MESSAGES = "{% if m.reasoning and loop.last %}<|think|>{{ m.reasoning }}<|end|><|begin|>assistant{% endif %}<|content|>{{ m.content }}<|end|>"
CLOSED = (
    "{% if m.role == 'assistant' %}{% if m.reasoning %}<|open|>think<|sep|>{{ m.reasoning }}<|close|>think<|sep|>{% endif %}"
    "<|open|>answer<|sep|>{{ m.content }}<|close|>answer<|sep|><|close|>message<|sep|>{% else %}{{ m.content }}{% endif %}"
)
CUT = "{{ m.content.split('</thought>')[-1] }}"
STRIPPED = (
    "{% if m.role == 'assistant' %}{% for p in m.content.split('<channel|>') %}{{ p.split('<|channel>')[0] if '<|channel>' in p else p }}"
    "{% endfor %}{% else %}{{ m.content }}{% endif %}"
)
STEPS = (
    "{% if m.role == 'assistant' and m.reasoning_content and loop.last %}{{ m.reasoning_content }}\n[BEGIN FINAL RESPONSE]\n"
    "{% endif %}{{ m.content }}"
)
PHRASES = (
    "{% if thinking %}Write your thoughts after 'Here is my thought process:' and your response after 'Here is my response:'.\n"
    "{% endif %}"
)
FORMS = {
    "last turn": Form(LAST, "", THINK, "<think>\nHm.\n</think>\n\nYes.", added=("<think>", "</think>"), history="Yes."),
    "empty in history": Form(
        GLM, "", THINK, "<think>Hm.</think>\nYes.", added=("<think>", "</think>"), history="<think></think>\nYes."
    ),
    "opened": Form(
        CUT, "<thought>\n", ReasoningMarks("<thought>", "</thought>"), "Hm.\n</thought>\n\nYes.", opens=True,
        added=("<thought>", "</thought>"), history="\n\nYes.",
    ),
    "closed": Form(
        LAST, "{% if enable_thinking %}<think>\n{% else %}<think>\n\n</think>\n\n{% endif %}", THINK, "Yes.",
        added=("<think>", "</think>"), opens=None, history="Yes.",
    ),
    "parts": Form(
        PARTED, "", ReasoningMarks("[THINK]", "[/THINK]", key=PARTS), "[THINK]Hm.[/THINK]Yes.",
        special=("[THINK]", "[/THINK]"), history="[THINK]Hm.[/THINK]Yes.",
    ),
    "before calls": Form(
        CALLED, "", ReasoningMarks("<|channel>thought", "<channel|>", key="reasoning_content"),
        "<|channel>thought\nHm.\n<channel|>Yes.", special=("<|channel>", "<channel|>"), history="Yes.",
    ),
    "frames": Form(
        FRAMED, "", ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>", "reasoning_content"),
        "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Yes.<|END_TEXT|>",
        special=("<|START_THINKING|>", "<|END_THINKING|>", "<|START_TEXT|>", "<|END_TEXT|>"),
    ),
    "addressed": Form(
        ADDRESSED, "", ReasoningMarks("to=self<|message|>", "<|eom|><|start|>assistant", "to=user<|message|>", key="reasoning"),
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>Yes.", special=("<|message|>", "<|eom|>", "<|start|>"),
        start="<|start|>{{ m.role }}",
    ),
    "messages": Form(
        MESSAGES, "", ReasoningMarks("<|think|>", "<|end|><|begin|>assistant", "<|content|>", key="reasoning"),
        "<|think|>Hm.<|end|><|begin|>assistant<|content|>Yes.", special=("<|think|>", "<|end|>", "<|begin|>", "<|content|>"),
        start="<|begin|>{{ m.role }}",
    ),
    "between two marks": Form(
        STRIPPED, "", ReasoningMarks("<|channel>", "<channel|>"), "<|channel>Hm.<channel|>Yes.",
        special=("<|channel>", "<channel|>"), history="\n\nYes.",
    ),
    "told": Form(
        "{{ m.content }}", "", ReasoningMarks("<think>", "</think>", "<response>", "</response>"),
        "<think>Hm.</think>\n<response>Yes.</response>", history="Yes.",
        system="Write your thoughts between <think></think> and your response between <response></response>.",
    ),
    "told in phrases": Form(
        "{{ m.content }}", "", ReasoningMarks("Here is my thought process:", "Here is my response:"),
        "Here is my thought process:\nHm.\n\nHere is my response:\nYes.", history="Yes.", system=PHRASES,
    ),
    "turned on": Form(
        "{{ m.content }}", "", ReasoningMarks("<think>", "</think>"), "<think>\nHm.\n</think>\n\nYes.", history="Yes.",
        system="{% if enable_thinking %}Enable deep thinking subroutine.\n{% endif %}",
    ),
    "thought": Form(
        "{% if m.thought %}<|thought_start|>\n{{ m.thought }}\n<|thought_end|>\n{% endif %}{{ m.content }}", "",
        ReasoningMarks("<|thought_start|>", "<|thought_end|>", key="thought"), "<|thought_start|>\nHm.\n<|thought_end|>\nYes.",
        added=("<|thought_start|>", "<|thought_end|>"), history="<|thought_start|>\nHm.\n<|thought_end|>\nYes.",
    ),
    "with documents": Form(
        "{% if documents and m.tool_calls %}<|START_THINKING|>{{ m.tool_plan }}<|END_THINKING|>{% else %}{{ m.content }}{% endif %}",
        "", ReasoningMarks("<|START_THINKING|>", "<|END_THINKING|>", key="tool_plan"), "<|START_THINKING|>Hm.<|END_THINKING|>Yes.",
        special=("<|START_THINKING|>", "<|END_THINKING|>"), history="Yes.",
    ),
    "closed message": Form(
        CLOSED, "<|open|>think<|sep|>",
        ReasoningMarks("<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|open|>answer<|sep|>", "<|close|>answer<|sep|>", "reasoning"),
        "Hm.<|close|>think<|sep|><|open|>answer<|sep|>Yes.<|close|>answer<|sep|>", special=("<|open|>", "<|close|>", "<|sep|>"),
        opens=True,
    ),
    "words": Form(
        STEPS, "Here are my reasoning steps:\n",
        ReasoningMarks("Here are my reasoning steps:", "[BEGIN FINAL RESPONSE]", key="reasoning_content"),
        "Hm.\n[BEGIN FINAL RESPONSE]\nYes.", opens=True, history="Yes.",
    ),
}  # fmt: skip
# The same marks, which no token of the vocabulary is.
FORMS |= {f"{name}, as text": replace(form, added=()) for name, form in FORMS.items() if form.added}


@cache
def tokenizer_of(name: str) -> Tokenizer:
    form = FORMS[name]
    backend = Backend(
        models.BPE({each: at for at, each in enumerate([EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())])}, [])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS, *form.special])
    backend.add_tokens([AddedToken(each, special=False, normalized=False) for each in form.added])
    opening = form.start.replace("{{ m.role }}", "assistant") + form.opening
    template = f"{form.system}{{% for m in messages %}}{form.start}{form.turns}{{% endfor %}}{{% if add_generation_prompt %}}{opening}{{% endif %}}"
    return make_tokenizer(backend, template)


def make_tokenizer(backend: Backend, template: Any) -> Tokenizer:
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": EOS}
    return Tokenizer(
        {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": json.dumps(settings).encode()}
    )


def read(name: str, ids: list[int], opens: bool | None, stop: StopStrings | None = None) -> tuple[str, str]:
    """Returns the reasoning and the text that a reader finds; what it has found so far is a part of it at any time."""
    tokenizer = tokenizer_of(name)
    reader = Chats(tokenizer).reader(None, opens, "id", 0)
    if reader is None:
        return "", tokenizer.decode(ids)
    stream, parts = tokenizer.stream(stop), []
    for token in ids:
        piece = stream.push(token)
        if reader.is_mark(token):
            piece += stream.flush(True)
        text = reader.read(token, piece)
        parts.append((reader.take_reasoning(), text))
    text = reader.finish(stream.finish(), is_cut=True)
    parts.append((reader.take_reasoning(), text))
    reasoning, text = ("".join(each) for each in zip(*parts, strict=True))
    return reasoning, text


@pytest.mark.parametrize("name", FORMS)
def test_marks_are_found(name: str) -> None:
    assert tokenizer_of(name).reasoning_marks == FORMS[name].marks


@pytest.mark.parametrize(
    "told",
    [
        "Write your thoughts after 'My thoughts:', and their reasons after 'My reasons:'.",
        "Write your response after 'Here is my response:' and your thoughts after 'Here is my thought process:'.",
        "Begin each line with 'Question:' or with 'Answer:'.",
        "Never close with </thought> what you did not open with <thought>.",
    ],
)
def test_what_marks_nothing(told: str) -> None:
    def render(messages: Messages, options: dict[str, Any], opens_turn: bool) -> str:
        return told + "".join(f"<|{each['role']}|>{each['content']}" for each in messages)

    assert find_marks(render, told) is None


def test_the_template_of_chats_with_tools_has_marks_of_its_own() -> None:
    """As Cohere's, whose default one opens the answer."""
    turns = "{% for m in messages %}<|{{ m.role }}|>"
    templates = {
        "default": turns + "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
        # It drops calls, and tells of their mark.
        "tool_use": "{{ tools }}<tool_call>" + turns + "{% if m.tool_plan %}<|plan|>{{ m.tool_plan }}<|/plan|>{% endif %}"
        "{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|><|plan|>{% endif %}",
    }  # fmt: skip

    def with_templates(templates: dict[str, str]) -> Tokenizer:
        listed = [{"name": name, "template": each} for name, each in templates.items()]
        return make_tokenizer(tokenizer_of("told").backend, listed)

    tokenizer = with_templates(templates)
    chats = Chats(tokenizer)
    assert tokenizer.reasoning_marks is None
    assert tokenizer.reasoning_marks_with_tools == ReasoningMarks("<|plan|>", "<|/plan|>", key="tool_plan")
    assert chats.call_format.name == "hermes"
    templates["tool_use"] = "Think between <think> and </think>. {{ tools }}" + templates["default"]
    assert with_templates(templates).reasoning_marks_with_tools == ReasoningMarks("<think>", "</think>")
    offered = Tools(({"name": "get"},))
    said = [QUESTION, Message("assistant", "Yes.", reasoning="Hm."), QUESTION]
    for tools, opens, history in (
        (None, None, "Yes."),
        (Tools(offered.functions, "none"), None, "Yes."),
        (offered, True, "<|plan|>Hm.<|/plan|>Yes."),
    ):
        written, options = chats.template_input(said, tools)
        prompt = tokenizer.encode_chat(written, options)
        assert f"<|assistant|>{history}<|user|>" in tokenizer.decode(prompt)
        assert chats.opens_reasoning(prompt, tools) is opens
    reader = chats.reader(offered, True, "id", 0)
    assert reader is not None
    assert [reader.read(token, chr(token)) for token in b"Hm.<|/plan|>Yes."][-3:] == ["e", "s", "."]
    assert reader.take_reasoning() == "Hm."
    rules = chats.with_reasoning({"lark_grammar": 'start: "x"'}, True, (0,), offered)
    assert "<|/plan|>" in grammar_text(*rules)


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_is_read(name: str) -> None:
    form, tokenizer = FORMS[name], tokenizer_of(name)
    chats = Chats(tokenizer)
    prompt = tokenizer.encode_chat(chats.template_input([QUESTION], None)[0])
    assert chats.opens_reasoning(prompt, None) is form.opens
    reasoning = "" if form.opens is None else "Hm."
    assert read(name, tokenizer.encode(form.answer), form.opens) == (reasoning, "Yes.")
    assert read(name, tokenizer.encode("Yes."), form.opens) == (("Yes.", "") if form.opens else ("", "Yes."))


@pytest.mark.parametrize("rest", ["", "<|close|>message<|sep|>", "\n<|close|>message<|sep|>and more"])
def test_a_message_ends_after_its_answer(rest: str) -> None:
    """Also where the prompt has opened the answer, without reasoning."""
    name = "closed message"
    form, tokenizer = FORMS[name], tokenizer_of(name)
    assert read(name, tokenizer.encode(form.answer + rest), form.opens) == ("Hm.", "Yes.")
    without = form.answer.partition(form.marks.answer_begin)[2]
    assert read(name, tokenizer.encode(without + rest), opens=None) == ("", "Yes.")
    # Or has a part of it.
    assert read(name, tokenizer.encode(without + rest), opens=False) == ("", "Yes.")


def test_a_mark_after_one_whose_text_is_held_back() -> None:
    """As a part of a stop string."""
    name = "before calls"
    ids = tokenizer_of(name).encode("<|channel>thought<channel|>Yes.")
    assert read(name, ids, False, StopStrings(("thoughtless",))) == ("", "Yes.")


@pytest.mark.parametrize("name", FORMS)
def test_an_answer_cut_anywhere(name: str) -> None:
    """Only where it is cut within a mark that is several tokens, the mark's beginning is text."""
    form, tokenizer = FORMS[name], tokenizer_of(name)
    ids = tokenizer.encode(form.answer)
    marks = (form.marks.begin, f"{form.marks.end}{form.marks.answer_begin}", form.marks.answer_end)
    for num in range(len(ids)):
        found = read(name, ids[:num], form.opens)
        for part, whole in zip(found, ("Hm.", "Yes."), strict=True):
            rest = part.removeprefix(whole).strip()
            assert whole.startswith(part.strip()) or any(rest and rest in mark for mark in marks)


@pytest.mark.parametrize("name", FORMS)
def test_a_format_holds_after_the_reasoning(name: str) -> None:
    form, tokenizer = FORMS[name], tokenizer_of(name)
    engine = GrammarEngine(tokenizer.backend.to_str().encode(), tokenizer.backend.get_vocab_size(), (0,))
    rules = make_rules(OutputFormat(regex='\\{"a": 1\\}'))
    grammar = engine.grammar(grammar_text(*Chats(tokenizer).with_reasoning(rules, form.opens, (0,))))
    guide = grammar.guide()
    ids = tokenizer.encode(form.answer.strip().replace("Yes.", '{"a": 1}'))
    for at, token in enumerate(ids):
        assert allows(guide.mask(ids[:at]), token), tokenizer.decode(ids[:at])
    assert allows(guide.mask(ids), 0)
    wrong = tokenizer.encode(form.answer.strip())
    at = len(tokenizer.encode(form.answer.strip().split("Yes.")[0]))
    assert not allows(guide.mask(wrong[:at]), wrong[at])
    # As a draft that crosses the end is verified: from no state but the tokens.
    assert all((grammar.guide().mask(ids[:at]) == guide.mask(ids[:at])).all() for at in (1, len(ids) // 2, len(ids)))


@pytest.mark.parametrize("name", [name for name, form in FORMS.items() if form.history and form.opens is not None])
def test_history_has_what_the_template_keeps(name: str) -> None:
    """Whether a client sends reasoning apart or within the content."""
    form, tokenizer = FORMS[name], tokenizer_of(name)
    chats = Chats(tokenizer)
    marks = form.marks
    apart = Message("assistant", "Yes.", reasoning="Hm.")
    within = Message("assistant", f"{marks.begin}\nHm.\n{marks.end}\n\nYes.")
    splits = "split('" in form.turns
    for said in (apart, within) if splits else (apart,):
        written, options = chats.template_input([QUESTION, said, QUESTION], None)
        text = tokenizer.decode(tokenizer.encode_chat(written, options, NEXT_TURN), skip_special_tokens=False)
        expected = form.history if said is within else form.history.lstrip("\n")
        assert f"<|assistant|>\n{expected}<|user|>" in text
