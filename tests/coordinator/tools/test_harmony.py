"""Harmony's channels come apart in any stream, are part of every grammar, and go back into the template."""

import json
from typing import Any

import pytest

from coordinator.acceptance import Origin, Outcome
from coordinator.chat_template import CONTINUED
from coordinator.context import FinishReason
from coordinator.format_grammars import make_rules
from coordinator.generate_response import Choice
from coordinator.request import Request
from coordinator.tools.chats import Chats
from coordinator.tools.harmony import Harmony
from coordinator.tools.offered_tools import AUTO, REQUIRED, Tools
from coordinator.tools.tool_messages import Call, Message
from paceline.grammar import Grammar, GrammarEngine, allows, grammar_text
from paceline.output_format import OutputFormat
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import SpeculationParams
from tests.harmony import EOS, tokenizer_of

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTIONS = [{"type": "function", "function": {"name": name, "parameters": CITY}} for name in ("get", "set")]
QUESTION = Message("user", "Why?")
ARGUMENTS = '{"city": "Paris"}'
ANALYSIS = "<|channel|>analysis<|message|>"
FINAL = "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
PREAMBLE = "<|channel|>commentary<|message|>"
TO = "<|channel|>commentary to=functions.get"
ROLE_TO = " to=functions.get<|channel|>commentary"
CALL = f"{TO} <|constrain|>json<|message|>{ARGUMENTS}<|call|>"
GOT = [("get", ARGUMENTS)]
# Answer, reasoning, text and calls.
ANSWERS: dict[str, tuple[str, str, str, list[tuple[str, str]]]] = {
    "reasoning and content": (f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes.<|return|>", "Hm.", "Yes.", []),
    "content": (f"{FINAL}Yes.<|return|>", "", "Yes.", []),
    "typed content": (f"<|channel|>final <|constrain|>json<|message|>{ARGUMENTS}<|return|>", "", ARGUMENTS, []),
    "call": (f"{ANALYSIS}Hm.{NEXT}{CALL}", "Hm.", "", GOT),
    "recipient before the channel": (f"{ROLE_TO} json<|message|>{ARGUMENTS}<|call|>", "", "", GOT),
    "recipient of reasoning": (f"<|channel|>analysis to=functions.get<|message|>{ARGUMENTS}<|call|>", "", "", GOT),
    "preamble": (f"{ANALYSIS}Hm.{NEXT}{PREAMBLE}Let me see.{NEXT}{CALL}", "Hm.", "Let me see.", GOT),
    "more of each": (
        f"{ANALYSIS}A{NEXT}{PREAMBLE}B{NEXT}{ANALYSIS}C{NEXT}{FINAL}D<|return|>", "A\n\nC", "B\n\nD", [],
    ),
    "another's tool": ("<|channel|>commentary to=functions.put<|message|>{}<|call|>", "", "{}", []),
    "nothing": ("<|return|>", "", "", []),
    "empty reasoning": (f"{ANALYSIS}{NEXT}{FINAL}Yes.", "", "Yes.", []),
    "no header": ("Yes.<|return|>", "", "Yes.", []),
    "no header and another message": (f"Yes.{NEXT}{FINAL}No.<|return|>", "", "Yes.\n\nNo.", []),
}  # fmt: skip


TOKENIZER = tokenizer_of()
CHATS = Chats(TOKENIZER)
ENDS = tuple(TOKENIZER.id_of(name) for name in (EOS, "<|return|>", "<|call|>"))
ENGINE = GrammarEngine(TOKENIZER.backend.to_str().encode(), TOKENIZER.backend.get_vocab_size(), ENDS)


def ids(text: str) -> list[int]:
    return TOKENIZER.encode(text)


def tools(choice: str = AUTO) -> Tools:
    return Tools.parse(json.dumps(FUNCTIONS), choice)


def read(
    tokens: list[int], per_round: int = 1, opens: bool | None = False, offered: Tools | None = None
) -> tuple[str, str, list[tuple[str, str]], FinishReason | None, int]:
    """Returns an answer's parts, however many tokens a round brings."""
    request = Request(
        "id", [1], SamplingParams(max_tokens=len(tokens), seed=1), SpeculationParams(), ENDS, 10_000, 400, is_chat=True,
        tools=offered, opens_reasoning=opens,
    )  # fmt: skip
    context = Choice(0, request, TOKENIZER, CHATS).context
    emissions = []
    for at in range(0, len(tokens), per_round):
        if not context.is_finished:
            round_tokens = tokens[at : at + per_round]
            emissions.append(context.extend(Outcome(round_tokens, len(round_tokens) - 1, Origin.TARGET)))
    calls: list[list[str]] = []
    for delta in (delta for each in emissions for delta in each.tool_calls):
        if delta.id:
            calls.append([delta.name, ""])
        calls[delta.index][1] += delta.arguments
    reasoning = "".join(each.reasoning for each in emissions)
    text = "".join("".join(each.pieces) for each in emissions)
    made = [(name, arguments) for name, arguments in calls]
    return reasoning, text, made, context.finish_reason, context.num_reasoning_tokens


def test_the_format_is_found_by_its_template() -> None:
    assert Harmony.find(TOKENIZER) is not None
    assert Harmony.find(tokenizer_of("{% for m in messages %}<|start|>{{ m.content }}<|end|>{% endfor %}")) is None


@pytest.mark.parametrize("per_round", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_comes_apart_in_any_stream(name: str, per_round: int) -> None:
    answer, *parts = ANSWERS[name]
    *found, reason, _ = read(ids(answer), per_round, offered=tools())
    assert found == parts
    if answer.endswith(("<|call|>", "<|return|>")):
        assert reason is (FinishReason.TOOL_CALLS if parts[2] else FinishReason.STOP)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_cut_anywhere_is_a_part_of_the_whole(name: str) -> None:
    answer, *parts = ANSWERS[name]
    tokens = ids(answer)
    for num in range(1, len(tokens)):
        reasoning, text, calls, reason, _ = read(tokens[:num], offered=tools())
        assert parts[0].startswith(reasoning)
        assert parts[1].startswith(text)
        for (tool, arguments), (expected, whole) in zip(calls, parts[2], strict=False):
            assert tool == expected
            assert whole.startswith(arguments)
        assert len(calls) <= len(parts[2])
        assert reason is FinishReason.LENGTH


def test_marks_in_other_tokens_are_text() -> None:
    spelled = [token for character in f"a{NEXT}{FINAL}b" for token in ids(character)]
    reasoning, text, *_ = read([*ids(ANALYSIS), *spelled, *ids(f"{NEXT}{FINAL}"), *spelled])
    assert reasoning == text == f"a{NEXT}{FINAL}b"


def test_reasoning_tokens_are_counted_with_headers_and_marks() -> None:
    header = len(ids(ANALYSIS))
    assert read(ids(f"{ANALYSIS}Hm.{NEXT}{FINAL}Yes."))[4] == header + 4
    assert read(ids(f"{FINAL}Yes."))[4] == 0
    assert read(ids(f"{ANALYSIS}Hm.{NEXT}{ANALYSIS}So.{NEXT}{CALL}"))[4] == 2 * (header + 4) + len(
        ids("<|start|>assistant")
    )


def test_without_tools_a_call_is_text() -> None:
    assert read(ids(CALL))[:3] == ("", ARGUMENTS, [])


def rules(choice: str | None, wanted: OutputFormat | None = None, opens: bool | None = False) -> Grammar:
    offered = None if choice is None else tools(choice)
    if offered is None:
        assert wanted is not None
        answer: dict[str, Any] = make_rules(wanted)
    else:
        schema = None if wanted is None else json.loads(wanted.json_schema)
        answer = {"lark_grammar": CHATS.call_grammar(offered, schema).text}
    return ENGINE.grammar(grammar_text(*CHATS.with_reasoning(answer, opens, ENDS, offered)))


def refused_at(grammar: Grammar, answer: str) -> str | None:
    """Returns the text up to the first token that may not follow; None if all may."""
    guide, tokens = grammar.guide(), ids(answer)
    for at, token in enumerate(tokens):
        if not allows(guide.mask(tokens[:at]), token):
            return TOKENIZER.decode(tokens[:at], skip_special_tokens=False)
    return None


THOUGHT = f"{ANALYSIS}Hm.{NEXT}"
WANTED = OutputFormat(json_schema=json.dumps(CITY), fixed_whitespace=True)


@pytest.mark.parametrize("choice", [AUTO, REQUIRED, "get"])
@pytest.mark.parametrize(
    "call", [CALL, f"{TO}<|message|>{ARGUMENTS}<|call|>", f"{ROLE_TO} json<|message|>{ARGUMENTS}<|call|>"]
)
def test_calls_are_allowed_after_reasoning(choice: str, call: str) -> None:
    grammar = rules(choice)
    for before in ("", THOUGHT, THOUGHT * 2):
        assert refused_at(grammar, before + call) is None
        assert read(ids(before + call), offered=tools(choice))[2] == GOT
    # Nothing follows a call, so that it ends the answer even without its mark.
    assert grammar.guide().is_over(ids(f"{THOUGHT}{call}")[:-1])


def test_a_choice_of_tools_holds() -> None:
    for choice in (REQUIRED, "get"):
        for answer in (f"{FINAL}Yes.", f"{PREAMBLE}Let me see.", f"{ANALYSIS}Hm.<|return|>"):
            assert refused_at(rules(choice), answer) is not None
    assert refused_at(rules("get"), CALL.replace("get", "set")) == "<|channel|>commentary to=functions."
    assert refused_at(rules(REQUIRED), CALL.replace("get", "set")) is None
    assert refused_at(rules(REQUIRED), CALL.replace("get", "put")) == "<|channel|>commentary to=functions."
    wrong = CALL.replace("city", "town")
    assert refused_at(rules(REQUIRED), wrong) == wrong.partition("town")[0]
    for answer in (f"{FINAL}Yes.<|return|>", f"{THOUGHT}{PREAMBLE}Let me see.{NEXT}{THOUGHT}{CALL}"):
        assert refused_at(rules(AUTO), answer) is None


@pytest.mark.parametrize("choice", [None, AUTO])
def test_a_format_holds_in_the_final_channel(choice: str | None) -> None:
    grammar = rules(choice, WANTED)
    for head in (FINAL, "<|channel|>final <|constrain|>json<|message|>"):
        assert refused_at(grammar, f"{THOUGHT}{head}{ARGUMENTS}<|return|>") is None
        assert refused_at(grammar, f"{THOUGHT}{head}Yes.") == f"{THOUGHT}{head}"
    assert (refused_at(grammar, f"{PREAMBLE}Let me see.") is None) is (choice is AUTO)
    assert (refused_at(grammar, CALL) is None) is (choice is AUTO)
    assert (refused_at(grammar, f"{THOUGHT}{PREAMBLE}Let me see.{NEXT}{THOUGHT}{CALL}") is None) is (choice is AUTO)
    # All content is valid, so no other may come before it.
    assert refused_at(grammar, f"{PREAMBLE}Let me see.{NEXT}{FINAL}{ARGUMENTS}") is not None


def test_masks_follow_from_the_tokens() -> None:
    """A guide that has seen a draft cross messages says what a fresh one says."""
    grammar = rules(AUTO, WANTED)
    guide = grammar.guide()
    guide.mask(ids(f"{THOUGHT}{CALL}")[:-1])
    for answer in (ANALYSIS, f"{ANALYSIS}Hm", THOUGHT, f"{THOUGHT}{FINAL}", f"{THOUGHT}{FINAL}{{"):
        assert (guide.mask(ids(answer)) == grammar.guide().mask(ids(answer))).all()


def written(messages: list[Message], offered: Tools | None = None, **options: Any) -> str:
    plain, more = CHATS.template_input([QUESTION, *messages], offered)
    text = TOKENIZER.decode(TOKENIZER.encode_chat(plain, {**more, **options}), skip_special_tokens=False)
    return text.split("Why?<|end|>")[-1]


def test_calls_in_the_history_are_written_one_by_one() -> None:
    calls = (Call("a", "get", ARGUMENTS), Call("b", "set", ARGUMENTS))
    said = Message("assistant", "Let me see.", calls, reasoning="Hm.")
    results = [Message("tool", "1", tool_call_id="a"), Message("tool", "2", tool_call_id="b")]
    assert written([said, *results], tools()) == (
        f"<|start|>assistant{ANALYSIS}Hm.\n\nLet me see.<|end|>"
        f"<|start|>assistant to=functions.get<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>"
        '<|start|>functions.get to=assistant<|channel|>commentary<|message|>"1"<|end|>'
        f"<|start|>assistant to=functions.set<|channel|>commentary json<|message|>{ARGUMENTS}<|call|>"
        '<|start|>functions.set to=assistant<|channel|>commentary<|message|>"2"<|end|><|start|>assistant'
    )


def test_a_generated_call_comes_back_with_the_same_tokens() -> None:
    answer = f"{THOUGHT}{ROLE_TO} json<|message|>{ARGUMENTS}<|call|>"
    reasoning, text, [(name, arguments)], *_ = read(ids(answer), offered=tools())
    said = Message("assistant", text, (Call("a", name, arguments),), reasoning=reasoning)
    assert written([said, Message("tool", "1", tool_call_id="a")], tools()).startswith(f"<|start|>assistant{answer}")


def test_the_template_cuts_the_reasoning_of_earlier_answers() -> None:
    assert written([Message("assistant", "Yes.", reasoning="Hm."), QUESTION]) == "<|start|>assistant"
    plain, _ = CHATS.template_input([QUESTION, Message("assistant", "Yes.", reasoning="Hm."), QUESTION], None)
    assert "Hm." not in TOKENIZER.decode(TOKENIZER.encode_chat(plain))
    assert "Reasoning: high<" in TOKENIZER.decode(
        TOKENIZER.encode_chat(plain, {"reasoning_effort": "high"}), skip_special_tokens=False
    )


def test_a_message_that_goes_on_is_content() -> None:
    plain, _ = CHATS.template_input([QUESTION, Message("assistant", "Ye", is_prefix=True)], None)
    prompt = TOKENIZER.encode_chat(plain, ending=CONTINUED)
    assert CHATS.opens_reasoning(prompt, None) is None
    assert read(ids("s.<|return|>"), opens=None)[:2] == ("", "s.")
    assert read(ids(f"s.{NEXT}{CALL}"), opens=None, offered=tools())[:3] == ("", "s.", GOT)
    assert refused_at(rules(AUTO, opens=None), f"s.{NEXT}{THOUGHT}{CALL}") is None
    assert refused_at(rules(None, WANTED, None), f"{ARGUMENTS}<|return|>") is None
    assert CHATS.opens_reasoning(TOKENIZER.encode_chat(plain[:1]), None) is False
