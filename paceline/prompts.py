import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.errors import InvalidArgument

_USERS = ("human", "user")
_FORMS = "`prompt`, `messages`, `turns` or `conversations`"
# For records without one.
DEFAULT_CATEGORY = "prompts"


@dataclass(frozen=True, slots=True)
class PromptRecord:
    # Text, or messages of {"role", "content"}.
    prompt: str | list[dict[str, str]]
    # The record's own id.
    id: Any = None
    category: str = DEFAULT_CATEGORY

    @property
    def text(self) -> str:
        if isinstance(self.prompt, str):
            return self.prompt
        return next(message["content"] for message in self.prompt if message["role"] == "user")


def read_prompts(name: str, path: Path) -> list[PromptRecord]:
    """Reads JSON lines or a JSON list. Raises InvalidArgument naming the option `name`, the file and the line or entry.

    Each entry is a text, or an object with one of

    - `prompt`: a text,
    - `messages`: a conversation of {"role", "content"},
    - `turns`: texts, of which the first is used (Spec-Bench),
    - `conversations`: {"from", "value"}, of which the first human turn is used (ShareGPT). Published files contain
      conversations without one; they are skipped.

    An object may also have `id` or `question_id`, and `category`.
    """
    found = []
    for place, entry in _entries(name, path):
        try:
            prompt = _prompt_of(entry)
        except ValueError as error:
            raise InvalidArgument(name, f"{place}: {error}") from None
        if prompt is not None:
            found.append(_record(entry, prompt))
    if not found:
        raise InvalidArgument(name, f"{path}: contains no prompt")
    return found


def _text_of(name: str, path: Path) -> str:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise InvalidArgument(name, f"{path}: no such file") from None
    except OSError as error:
        raise InvalidArgument(name, f"{path}: {error.strerror or error}") from None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(name, f"{path}, line {line}: not UTF-8 text; save the file as UTF-8") from None


def _entries(name: str, path: Path) -> Iterator[tuple[str, Any]]:
    text = _text_of(name, path)
    if text.lstrip().startswith("["):
        entries = _parse(text, name, path, 1)
        yield from ((f"{path}, entry {number}", entry) for number, entry in enumerate(entries, 1))
        return
    # JSON may hold U+2028 and other characters at which splitlines() splits.
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}, line {number}", _parse(line, name, path, number)


def _parse(text: str, name: str, path: Path, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise InvalidArgument(name, f"{path}, line {line}, column {error.colno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(name, f"{path}, line {first_line}: not usable JSON: {error}") from None


def _prompt_of(entry: Any) -> str | list[dict[str, str]] | None:
    """Returns None for a conversation without a human turn. Raises ValueError."""
    match entry:
        case {"messages": list(messages)}:
            conversation = [_message_of(message) for message in messages]
            if not any(message["role"] == "user" for message in conversation):
                raise ValueError("no message of `messages` has the role user")
            return conversation
        case str(text) | {"prompt": str(text)} | {"turns": [str(text), *_]} if text.strip():
            return _checked(text)
        case {"conversations": list(turns)}:
            spoken = (turn.get("value") for turn in turns if isinstance(turn, dict) and turn.get("from") in _USERS)
            return next((_checked(text) for text in spoken if isinstance(text, str) and text.strip()), None)
        case _:
            raise ValueError(f"no prompt; an entry is a text, or an object with {_FORMS}, not empty")


def _message_of(message: Any) -> dict[str, str]:
    match message:
        case {"role": str(role), "content": str(content)}:
            return {"role": _checked(role), "content": _checked(content)}
        case _:
            raise ValueError("each of `messages` must have a role and a content, both texts")


def _checked(text: str) -> str:
    """Raises ValueError for half a surrogate pair, which JSON can hold and UTF-8 can't."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the text holds half of a character: {text[error.start]!r}") from None
    return text


def _record(entry: Any, prompt: str | list[dict[str, str]]) -> PromptRecord:
    if not isinstance(entry, dict):
        return PromptRecord(prompt)
    category = entry.get("category")
    own_id = entry.get("id", entry.get("question_id"))
    return PromptRecord(prompt, own_id, DEFAULT_CATEGORY if category is None else str(category))
