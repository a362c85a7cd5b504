"""A chat template shows how it writes calls: what is found says it literally, or the template is refused by name."""

import json
from dataclasses import replace
from typing import Any

import pytest

from coordinator.tokenizer import Tokenizer
from coordinator.tools.call_formats import HERMES
from coordinator.tools.call_parser import CallParser, ContentDelta
from coordinator.tools.call_probe import FoundCalls, NotFound, find_calls, probe_calls
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import Tools
from coordinator.tools.tool_messages import Call, Message, write_calls
from paceline.errors import InvalidArgument
from paceline.grammar import GrammarEngine, allows
from tests.coordinator.tools.call_templates import FAMILIES, JSON_CALL, Family, calls, items
from tests.coordinator.tools.test_conversation import render_with
from tests.coordinator.tools.test_roles import tokenizer_with
from tests.thinking import make_backend, thinking_tokenizer_files

TOOLS = Tools(({"name": "get"},))
CHAT = (
    Message("user", "Go."), Message("assistant", "", (Call("id_one", "get", '{"city": "Paris", "n": 3}'), Call("id_two", "get_time", "{}"))),
    Message("tool", "one", tool_call_id="id_one"), Message("tool", "two", tool_call_id="id_two"),
)  # fmt: skip
each_family = pytest.mark.parametrize("name", FAMILIES)


@each_family
def test_the_format_found_is_the_templates(name: str) -> None:
    family = FAMILIES[name]
    found = probe_calls(render_with(family.template))
    assert found is not None
    assert found.name
    assert replace(found, name=family.format.name) == family.format


def test_known_formats_keep_their_names() -> None:
    names = {name: probe_calls(render_with(family.template)) for name, family in FAMILIES.items()}
    assert {name: found.name for name, found in names.items() if found and found.name in ("hermes", "mistral", "llama")} == {
        "Hermes": "hermes", "Mistral": "mistral", "Llama 3": "llama",
    }  # fmt: skip
    assert len({found.name for found in names.values() if found}) > 20


@each_family
def test_calls_are_written_as_the_template_writes_them(name: str) -> None:
    family = FAMILIES[name]
    messages, _ = Chats(tokenizer_with(family.template)).template_input(CHAT, TOOLS)
    by_template = render_with(family.template)(messages, {})
    # One by one, if the template takes one in a message.
    calling = [each for each in messages if "tool_calls" in each]
    assert len(calling) == (2 if family.format.is_single else 1)
    assert all(write_calls(each, family.format).strip() in by_template for each in calling)


UNKNOWN = {
    "arguments first": (calls('<call>{"arguments": {{ a | tojson }}, "name": "{{ f.name }}"}</call>'), "depends on the arguments"),
    "no names": (calls("<call>{{ a | tojson }}</call>"), "no names"),
    "no mark": (calls("{{ f.name }}\n{{ a | tojson }}"), "nothing tells its calls from text"),
    "channels": (calls("<|channel|>commentary to=functions.{{ f.name }}<|message|>{{ a | tojson }}"), "channels"),
    "the end of a text": (calls("<|im_end|><call>{{ f.name }} {{ a | tojson }}</call>"), "with which a text ends too"),
    "an end that nothing begins": (calls("<call>{{ f.name }} {{ a | tojson }}</call>") + "Over.", "can't be read back"),
    "texts without quotes": ("[" + calls("{{ f.name }}(" + items("{{ k }}={{ v }}", ", ") + ")") + "]", "no form that is known"),
    "another form for two": ("{% if m.tool_calls | length > 1 %}<calls>{{ m.tool_calls | length }}" + calls("{{ f.name }} {{ a | tojson }}") + "{% else %}" + calls(JSON_CALL) + "{% endif %}", "otherwise where another one follows"),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_unknown_is_refused_by_name_and_not_taken_for_hermes(name: str) -> None:
    body, words = UNKNOWN[name]
    template = Family(body, HERMES).template
    with pytest.raises(NotFound, match=words):
        probe_calls(render_with(template))
    chats = Chats(tokenizer_with(template))
    for ask in (
        lambda: chats.template_input(CHAT[:1], TOOLS),
        lambda: chats.call_grammar(TOOLS, None),
        lambda: chats.reader(TOOLS, None, "r", 0),
    ):
        with pytest.raises(
            InvalidArgument, match=f"(?s)chat template of this model: .*{words}.*tool_choice none"
        ) as error:
            ask()
        assert error.value.field == "tools"
    # Without tools, or with the choice none, it is a chat like any other.
    assert chats.template_input(CHAT, Tools(TOOLS.functions, "none"))[1] == {}
    assert chats.template_input(CHAT[:1], None) == ([{"role": "user", "content": "Go."}], {})


def test_a_template_that_tells_of_tools_and_shows_no_form_is_refused() -> None:
    found = find_calls(render_with("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}"), "", ())
    assert found == FoundCalls(None, "it renders tools and no calls, and shows no mark of a form that is known", True)
    with pytest.raises(InvalidArgument, match="no mark of a form that is known"):
        found.known()


def test_chats_without_tools_ask_the_template_for_no_calls() -> None:
    chats = Chats(tokenizer_with(FAMILIES["Hermes"].template))
    chats.template_input([Message("user", "Go."), Message("assistant", "Well.")], None)
    assert "_calls" not in vars(chats)
    chats.template_input(CHAT, TOOLS)
    assert "_calls" in vars(chats)


def test_ids_are_those_that_the_template_takes() -> None:
    def ids(name: str) -> list[Any]:
        messages, _ = Chats(tokenizer_with(FAMILIES[name].template)).template_input(CHAT, TOOLS)
        assert [each["id"] for each in messages[1]["tool_calls"]] == [each["tool_call_id"] for each in messages[2:]]
        return [each["id"] for each in messages[1]["tool_calls"]]

    assert ids("Hermes") == ["id_one", "id_two"]
    assert ids("Kimi K2") == ["functions.get:0", "functions.get_time:1"]
    assert all(len(each) == 9 for each in ids("Mistral, ids"))


def test_marks_that_are_special_tokens_are_read_and_allowed() -> None:
    """Special tokens are no text: Gemma's quotes are such, and so are the marks of most formats."""
    files = thinking_tokenizer_files()
    backend = make_backend(has_special_marks=False)
    backend.add_special_tokens(["<|tool_call>", "<tool_call|>", '<|"|>'])
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": FAMILIES["Gemma 4"].template}
    tokenizer = Tokenizer(
        {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": json.dumps(config).encode()}
    )
    chats, tools = Chats(tokenizer), Tools(({"name": "get", "parameters": {"properties": {"city": {}}}},))
    text = 'Well.<|tool_call>call:get{city:<|"|>Par, is<|"|>}<tool_call|>'
    ids = tokenizer.encode(text, add_special_tokens=False)
    reader = chats.reader(tools, None, "request", 0)
    assert reader is not None
    content = "".join(reader.read(each, tokenizer.decode([each])) for each in ids) + reader.finish("", False)
    assert content == "Well."
    assert [(each.name, each.arguments) for each in reader.take_deltas()] == [("get", ""), ("", '{"city": "Par, is"}')]
    engine = GrammarEngine(backend.to_str().encode(), len(backend.get_vocab()), [0])
    for choice in ("auto", "required"):
        guide = engine.grammar(chats.call_grammar(Tools(tools.functions, choice), None).text).guide()
        taken = ids if choice == "auto" else ids[len("Well.") :]
        assert all(allows(guide.mask(taken[:at]), each) for at, each in enumerate(taken))


def test_calls_that_are_required_begin_as_the_template_writes_them() -> None:
    """White space too, or the next prompt would not have the same tokens."""
    tokenizer = tokenizer_with(FAMILIES["Hermes"].template)
    engine = GrammarEngine(tokenizer.backend.to_str().encode(), len(tokenizer.backend.get_vocab()), [0])
    guide = engine.grammar(Chats(tokenizer).call_grammar(Tools(TOOLS.functions, "required"), None).text).guide()
    written, bare = (tokenizer.encode(each, add_special_tokens=False) for each in ("\n<tool_call>", "<tool_call>"))
    assert allows(guide.mask([]), written[0])
    assert not allows(guide.mask([]), bare[0])


def test_white_space_before_a_call_that_is_cut_is_no_content() -> None:
    parser = CallParser(TOOLS, FAMILIES["Hermes"].format, "request")
    assert [*parser.feed("Well.\n<tool_"), *parser.finish(is_cut=True)] == [ContentDelta("Well.")]
