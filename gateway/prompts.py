"""What to continue: messages of a chat, or prompts."""

from collections.abc import Mapping
from typing import Any

from gateway.errors import refuse
from gateway.fields import PART, PART_IGNORED, check_keys, check_message
from paceline.client import Prompt

MAX_PROMPTS = 256
ROLES = ("system", "developer", "user", "assistant", "tool")


def messages_of(body: Mapping[str, Any]) -> list[dict[str, str]]:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise refuse("messages", "messages is not a list with at least one message")
    return [_message(each, f"messages[{index}]") for index, each in enumerate(messages)]


def _message(message: Any, name: str) -> dict[str, str]:
    if not isinstance(message, dict):
        raise refuse(name, f"{name} is not an object with role and content")
    check_message(message, name)
    role = message.get("role")
    if role not in ROLES:
        raise refuse(f"{name}.role", f"{name}.role is {role!r:.80}; it must be one of {', '.join(ROLES)}")
    content = message.get("content")
    is_silent = content is None and role == "assistant"
    return {"role": role, "content": "" if is_silent else text_of(content, f"{name}.content")}


def text_of(content: Any, name: str) -> str:
    """Returns a text, or the texts of its parts joined as they are: a client may cut a text anywhere."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refuse(name, f"{name} is {content!r:.80}; it must be a text or a list of text parts")
    texts = []
    for index, part in enumerate(content):
        is_text = isinstance(part, dict) and part.get("type") == "text"
        if is_text:
            check_keys(part, PART, f"{name}[{index}]", PART_IGNORED)
        if not is_text or not isinstance(part.get("text"), str):
            raise refuse(f"{name}[{index}]", f"{name}[{index}] is no text part; this model reads text alone")
        texts.append(part["text"])
    return "".join(texts)


def prompts_of(body: Mapping[str, Any]) -> list[Prompt]:
    prompt = body.get("prompt")
    if isinstance(prompt, str):
        return [prompt]
    if isinstance(prompt, list) and len(prompt) > 0:
        if all(_is_id(each) for each in prompt):
            return [prompt]
        if len(prompt) > MAX_PROMPTS:
            raise refuse("prompt", f"prompt is {len(prompt)} prompts; it must be at most {MAX_PROMPTS}")
        if all(isinstance(each, str) or (isinstance(each, list) and all(map(_is_id, each))) for each in prompt):
            return list(prompt)
    raise refuse("prompt", "prompt is not a text, a list of token ids, or a list of either")


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31
