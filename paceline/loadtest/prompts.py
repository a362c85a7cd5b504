"""Prompts from what a user's file holds, or of random tokens. No file is read here."""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from paceline.client import Prompt
from paceline.errors import InvalidArgument
from paceline.sampling import require

_HUMANS = ("human", "user")
FORMS = "`prompt`, `messages`, `turns` or `conversations`"


def parse_prompts(text: str, name: str) -> list[Prompt]:
    """Prompts of a file `name` that holds `text`: JSON lines or one JSON list, each entry an object with

    - `prompt`: a text,
    - `messages`: a conversation of {"role", "content"},
    - `turns`: texts, the first is used (Spec-Bench),
    - `conversations`: {"from", "value"}, the first of a human is used (ShareGPT). One in which no human
      speaks is passed over: published files hold some.

    Raises InvalidArgument naming the entry that has none of them, or if no prompt is left.
    """
    found: list[Prompt] = []
    for place, record in _entries(text, name):
        try:
            prompt = _prompt_of(record)
        except ValueError as error:
            raise InvalidArgument(f"--prompts {name}, {place}: {error}") from None
        if prompt is not None:
            found.append(prompt)
    require(bool(found), "--prompts", name, "a file with at least one prompt")
    return found


def _entries(text: str, name: str) -> Iterator[tuple[str, Any]]:
    """Each entry, and where it stands."""
    if text.lstrip().startswith("["):
        try:
            records = json.loads(text)
        except ValueError as error:
            raise InvalidArgument(f"--prompts {name}: not a JSON list: {error}") from None
        yield from ((f"entry {number}", record) for number, record in enumerate(records, 1))
        return
    # Not splitlines(): a text inside a line may hold separators that JSON does not escape.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            yield f"line {number}", json.loads(line)
        except ValueError:
            raise InvalidArgument(f"--prompts {name}, line {number}: not JSON") from None


def _prompt_of(record: Any) -> Prompt | None:
    """None for a conversation in which no human speaks. Raises ValueError saying what is wrong."""
    match record:
        case {"messages": [_, *_] as messages}:
            return [_message_of(message) for message in messages]
        case {"prompt": str(text)} | {"turns": [str(text), *_]} if text:
            return text
        case {"conversations": list(turns)}:
            spoken = (turn.get("value") for turn in turns if isinstance(turn, dict) and turn.get("from") in _HUMANS)
            return next((text for text in spoken if isinstance(text, str) and text), None)
        case _:
            raise ValueError(f"must be an object with {FORMS}, and not empty")


def _message_of(message: Any) -> dict[str, str]:
    match message:
        case {"role": str(role), "content": str(content)}:
            return {"role": role, "content": content}
        case _:
            raise ValueError("each of `messages` must have a role and a content, both texts")


@dataclass(frozen=True, slots=True)
class Lengths:
    """Of synthetic requests, in tokens. Raises InvalidArgument."""

    prompt: int
    output: int

    def __post_init__(self) -> None:
        ok = self.prompt >= 1 and self.output >= 1
        require(ok, "--synthetic", f"{self.prompt}:{self.output}", "IN:OUT, both at least 1 token")

    def check(self, max_model_len: int) -> None:
        """Raises InvalidArgument where a sequence would be longer than the model's longest."""
        fits = self.prompt + self.output <= max_model_len
        allowed = f"at most {max_model_len} tokens in all, the model's longest sequence"
        require(fits, "--synthetic", f"{self.prompt}:{self.output}", allowed)


def parse_lengths(text: str) -> Lengths:
    """From IN:OUT. Raises InvalidArgument."""
    prompt, _, output = text.partition(":")
    ok = prompt.isdecimal() and output.isdecimal()
    require(ok, "--synthetic", text, "IN:OUT, both numbers of tokens, like 512:128")
    return Lengths(int(prompt), int(output))


def synthetic_prompt(num_tokens: int, token_ids: range, key: str) -> Prompt:
    """`num_tokens` random ids out of `token_ids`; the same for the same key."""
    source = random.Random(key)
    return source.choices(token_ids, k=num_tokens)
