"""`paceline chat-template`: what is found in a model's template, and a conversation rendered with it."""

import json
from pathlib import Path

import pytest

from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.template_report import summary_of
from tests.coordinator.tools.call_templates import FAMILIES
from tests.harmony import harmony_tokenizer_files
from tests.thinking import thinking_tokenizer_files

# Arguments in a list of pairs, which no model is known to write.
UNKNOWN = (
    "{{ tools }}{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}<call>\n{{ c.function.name }}\n"
    "{{ c.function.arguments.items() | list }}\n</call>{% endfor %}{% endfor %}"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    files = thinking_tokenizer_files()
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": FAMILIES["Qwen3-Coder"].template}
    (tmp_path / "tokenizer.json").write_bytes(files["tokenizer.json"])
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    return tmp_path


def test_the_format_of_calls_is_shown_with_an_example(paceline, model: Path) -> None:
    ran = paceline("chat-template", str(model))
    assert (ran.code, ran.err) == (0, "")
    lines = [line.strip() for line in ran.out.splitlines()]
    assert "tools               rendered by the template" in lines
    assert 'before a name: "<tool_call>\\n<function="' in ran.out
    assert lines[lines.index("<function=get_weather>") + 1 :][:3] == ["<parameter=city>", "Paris", "</parameter>"]


def test_a_form_of_whole_answers_is_named(paceline, tmp_path: Path) -> None:
    for name, data in harmony_tokenizer_files().items():
        (tmp_path / name).write_bytes(data)
    ran = paceline("chat-template", str(tmp_path))
    assert (ran.code, ran.err) == (0, "")
    assert "harmony" in ran.out
    assert "refused" not in ran.out


def test_a_refused_format_is_told_with_the_reason(paceline, model: Path) -> None:
    (model / "chat_template.jinja").write_text(
        "{{ tools }}<function={% for m in messages %}{{ m.content }}{% endfor %}"
    )
    ran = paceline("chat-template", str(model))
    assert ran.code == 0
    assert "refused: tools are not supported with the chat template of this model" in ran.out


@pytest.mark.parametrize(
    ("files", "template", "summary"),
    [
        (thinking_tokenizer_files(), None, "reasoning between <think> and </think>; calls as hermes"),
        (thinking_tokenizer_files(), FAMILIES["Kimi K2"].template, "reasoning none; calls as <|calls_begin|>"),
        (harmony_tokenizer_files(), None, "reasoning between <|channel|>analysis<|message|> and <|end|>"),
        (thinking_tokenizer_files(), UNKNOWN, "reasoning none; tools are not supported with the chat template"),
        (thinking_tokenizer_files(), "", "none: the model takes text only"),
    ],
)  # fmt: skip
def test_what_is_found_in_one_line(files: dict[str, bytes], template: str | None, summary: str) -> None:
    """As it is logged when a coordinator starts."""
    if template is not None:
        config = json.loads(files["tokenizer_config.json"]) | {"chat_template": template or None}
        files = files | {"tokenizer_config.json": json.dumps(config).encode()}
    tokenizer = Tokenizer(files)
    found = summary_of(tokenizer, Chats(tokenizer))
    assert found.startswith(summary)
    assert "\n" not in found


def test_a_conversation_is_rendered(paceline, model: Path, tmp_path: Path) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "get", "arguments": '{"city": "Paris"}'}}
    messages = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "sun"}]}]  # fmt: skip
    tools = [{"type": "function", "function": {"name": "get"}}]
    file = tmp_path / "conversation.json"
    file.write_text(json.dumps({"messages": messages, "tools": tools}))
    ran = paceline("chat-template", str(model), "--conversation", str(file))
    assert ran.code == 0
    assert "<function=get>\n<parameter=city>\nParis\n</parameter>\n</function>" in ran.out
    assert ran.out.endswith("<|im_start|>tool\nsun<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(("text", "said"), [
    ("{", "is not JSON"), ("[]", "a list of messages"), ('[{"role": "x"}]', "messages[0].role"),
    ('[{"role": "assistant", "tool_calls": [1]}]', "messages[0].tool_calls[0].function"),
])  # fmt: skip
def test_a_conversation_that_is_none_is_refused(paceline, model: Path, tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "conversation.json"
    file.write_text(text)
    ran = paceline("chat-template", str(model), "--conversation", str(file))
    assert ran.code in (1, 2)
    assert said in ran.err


def test_a_model_that_is_not_there_is_named(paceline, tmp_path: Path) -> None:
    ran = paceline("chat-template", str(tmp_path / "none"))
    assert ran.code in (1, 2)
    assert "no such folder or GGUF file" in ran.err
