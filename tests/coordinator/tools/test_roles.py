"""What a chat template renders stays as it is; what it would refuse or drop is joined or becomes a user's message."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.tokenizer import Tokenizer
from coordinator.tools.chats import Chats
from coordinator.tools.offered_tools import Tools
from coordinator.tools.template_fit import TemplateFit
from coordinator.tools.tool_messages import Call, Message
from paceline.client import AsyncClient
from paceline.engine.models.weights import load_model
from paceline.sampling_params import SamplingParams
from tests.hosted import Host
from tests.model_folder import change_json
from tests.thinking import thinking_tokenizer_files, write_thinking_model

TURN = "[{{ each.role }}]{{ each.content }}"
TEMPLATES = {
    "takes all": f"{{% for each in messages %}}{TURN}{{% endfor %}}",
    # As Qwen3.5's.
    "refuses late systems": (
        "{% for each in messages %}{% if each.role == 'system' and not loop.first %}"
        f"{{{{ raise_exception('System message must be at the beginning.') }}}}{{% endif %}}{TURN}{{% endfor %}}"
    ),
    "drops late systems": (
        f"{{% for each in messages %}}{{% if each.role != 'system' or loop.first %}}{TURN}{{% endif %}}{{% endfor %}}"
    ),
    # As Gemma 3's.
    "demands turns": (
        "{% if messages[0].role == 'system' %}[system]{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}"
        "{% for each in messages %}{% if (each.role == 'user') != (loop.index0 % 2 == 0) %}"
        f"{{{{ raise_exception('Conversation roles must alternate') }}}}{{% endif %}}{TURN}{{% endfor %}}"
    ),
    # As Llama 2's, in a way: the last of a row counts.
    "drops users": (
        f"{{% for each in messages %}}{{% if loop.last or each.role != loop.nextitem.role %}}{TURN}{{% endif %}}{{% endfor %}}"
    ),
}
USER, OTHER, ANSWER, SYSTEM, LATE = CHAT = (
    Message("user", "a"), Message("user", "b"), Message("assistant", "c"), Message("system", "d"), Message("system", "e"),
)  # fmt: skip
# As Gemma 2's, and one that passes over what it does not know.
WITHOUT_SYSTEM = {
    "refuses": TEMPLATES["demands turns"].replace("[system]{{ messages[0].content }}", "{{ raise_exception('no') }}"),
    "drops": f"{{% for each in messages %}}{{% if each.role != 'system' %}}{TURN}{{% endif %}}{{% endfor %}}",
}
REMINDER = "<system-reminder>\ne\n</system-reminder>"
CASES: dict[str, tuple[list[Message], dict[str, str]]] = {
    "two systems": ([SYSTEM, LATE, USER], {
        "takes all": "[system]d[system]e[user]a", "refuses late systems": "[system]d\n\ne[user]a",
        "drops late systems": "[system]d\n\ne[user]a", "demands turns": "[system]d\n\ne[user]a",
        "drops users": "[system]d\n\ne[user]a",
    }),
    "a system in mid-chat": ([SYSTEM, USER, ANSWER, LATE, OTHER], {
        "takes all": "[system]d[user]a[assistant]c[system]e[user]b",
        "refuses late systems": f"[system]d[user]a[assistant]c[user]{REMINDER}[user]b",
        "drops late systems": f"[system]d[user]a[assistant]c[user]{REMINDER}[user]b",
        "demands turns": f"[system]d[user]a[assistant]c[user]{REMINDER}\n\nb",
        "drops users": "[system]d[user]a[assistant]c[system]e[user]b",
    }),
    "a system after the user": ([USER, LATE], {
        "takes all": "[user]a[system]e", "refuses late systems": f"[user]a[user]{REMINDER}",
        "drops late systems": f"[user]a[user]{REMINDER}", "demands turns": f"[user]a\n\n{REMINDER}",
        "drops users": "[user]a[system]e",
    }),
    "two users": ([USER, OTHER, ANSWER, USER], {
        "takes all": "[user]a[user]b[assistant]c[user]a", "refuses late systems": "[user]a[user]b[assistant]c[user]a",
        "drops late systems": "[user]a[user]b[assistant]c[user]a", "demands turns": "[user]a\n\nb[assistant]c[user]a",
        "drops users": "[user]a\n\nb[assistant]c[user]a",
    }),
}  # fmt: skip


def tokenizer_with(template: str) -> Tokenizer:
    files = thinking_tokenizer_files()
    config = json.loads(files["tokenizer_config.json"]) | {"chat_template": template}
    return Tokenizer(files | {"tokenizer_config.json": json.dumps(config).encode()})


def rendered(tokenizer: Tokenizer, messages: list[Message], tools: Tools | None = None) -> str:
    written, options = Chats(tokenizer).template_input(messages, tools)
    return tokenizer.render_chat(written, options)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gets_what_it_renders(name: str, case: str) -> None:
    messages, expected = CASES[case]
    assert rendered(tokenizer_with(TEMPLATES[name]), messages) == expected[name]


@pytest.mark.parametrize("name", WITHOUT_SYSTEM)
@pytest.mark.parametrize(("messages", "text"), [
    ([SYSTEM, USER, ANSWER, OTHER], "[user]d\n\na[assistant]c[user]b"),
    ([SYSTEM, LATE, USER], "[user]d\n\ne\n\na"),
    ([SYSTEM, ANSWER, USER], "[user]d[assistant]c[user]a"),
    ([SYSTEM], "[user]d"),
    ([SYSTEM, USER, ANSWER, LATE, OTHER], f"[user]d\n\na[assistant]c[user]{REMINDER}SEAMb"),
])  # fmt: skip
def test_a_template_without_system_messages_gets_them_with_the_first_users(
    name: str, messages: list[Message], text: str
) -> None:
    seam = "\n\n" if name == "refuses" else "[user]"
    assert rendered(tokenizer_with(WITHOUT_SYSTEM[name]), messages) == text.replace("SEAM", seam)


def test_the_embedded_models_chats_stay_as_they_are() -> None:
    tokenizer = Tokenizer(load_model("smollm2-135m", torch.bfloat16, in_place=True).tokenizer_files)
    messages = [SYSTEM, LATE, USER, OTHER, LATE, ANSWER, SYSTEM, USER, LATE]
    plain = [{"role": each.role, "content": each.content} for each in messages]
    assert Chats(tokenizer).template_input(messages, None) == (plain, {})


def test_messages_of_tools_are_fitted_too() -> None:
    """The template renders no tools, so that their results are written out as a user's messages."""
    call = Message("assistant", "", (Call("1", "f", "{}"),))
    chat = [SYSTEM, LATE, USER, call, Message("tool", "r", tool_call_id="1"), OTHER]
    text = rendered(tokenizer_with(TEMPLATES["demands turns"]), chat, Tools(({"name": "f"},)))
    assert text.startswith("[system]d\n\n# Tools")
    assert "\n\ne[user]a[assistant]" in text
    assert text.endswith("[user]<tool_response>\nr\n</tool_response>\n\nb")


def test_a_template_is_asked_only_once_and_only_for_such_chats() -> None:
    asked: list[Any] = []

    def render(messages: list[dict[str, Any]]) -> str:
        asked.append(messages)
        return json.dumps(messages)

    fit = TemplateFit(render, json.dumps)
    ordinary = [{"role": role, "content": "x"} for role in ("system", "user", "assistant", "user")]
    assert fit.fit(ordinary) == ordinary
    assert [[each["role"] for each in chat] for chat in asked] == [["system", "user"]]
    odd = [*ordinary[:1] * 2, *ordinary[1:], *ordinary, *ordinary[1:3] * 2, *ordinary[2:3]]
    fit.fit(odd * 3)
    num_asked = len(asked)
    for chat in (odd, odd * 3):
        fit.fit(chat)
    assert len({json.dumps(each) for each in asked}) == len(asked) == num_asked < 10


async def test_tokenize_and_generate_read_the_same_chat(host: Host, tmp_path: Path) -> None:
    write_thinking_model(tmp_path)
    change_json(tmp_path / "tokenizer_config.json", chat_template=TEMPLATES["demands turns"])
    flags = ("--model", str(tmp_path), "--kv-cache-memory", "16MiB")
    messages = [{"role": each.role, "content": each.content} for each in (USER, OTHER, ANSWER, USER, LATE)]
    async with AsyncClient(host.trio(flags, flags).address) as client:
        ids = await client.tokenize(messages)
        done = await client.complete(messages, SamplingParams(max_tokens=1))
        text = (await client.detokenize(ids)).text
    assert text == f"[user]a\n\nb[assistant]c[user]a\n\n{REMINDER}"
    assert done.finish is not None
    assert done.finish.prompt_tokens == len(ids)
