"""Builds a chat's messages from the parts that clients of other APIs send one by one."""

from enum import IntEnum
from typing import Any

from gateway.errors import FieldNames


class _Stage(IntEnum):
    """What the open message of the assistant ends with; its parts come in this order."""

    NOTHING, REASONING, TEXT, CALLS = range(4)


class Conversation:
    """Messages as `gateway/requests.py` parses a chat's, and the client's names of them."""

    def __init__(self) -> None:
        self._messages: list[dict[str, Any]] = []
        # Pieces of each message's reasoning and content, joined at the end: as text they would be copied with each.
        self._pieces: list[tuple[list[str], list[str]]] = []
        self._fields: list[str] = []
        self._stage = _Stage.NOTHING

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [
            {**message, **({"reasoning": "".join(reasoning)} if reasoning else {}), "content": "".join(content)}
            for message, (reasoning, content) in zip(self._messages, self._pieces, strict=True)
        ]

    @property
    def names(self) -> FieldNames:
        return {f"chat.messages[{at}]": field for at, field in enumerate(self._fields)}

    def add(self, role: str, text: str, field: str, **more: str) -> None:
        """`field`: the client's name of the message."""
        self._stage = _Stage.NOTHING
        self._append({"role": role, **more}, field)
        self._pieces[-1][1].append(text)

    def add_reasoning(self, text: str, field: str) -> None:
        self._assistant(_Stage.REASONING, field)
        self._pieces[-1][0].append(text)

    def add_answer(self, text: str, field: str) -> None:
        """Adds text of the assistant."""
        self._assistant(_Stage.TEXT, field)
        self._pieces[-1][1].append(text)

    def add_call(self, call_id: str, name: str, arguments: str, field: str) -> None:
        message = self._assistant(_Stage.CALLS, field)
        message.setdefault("tool_calls", []).append({"id": call_id, "name": name, "arguments": arguments})

    def end_message(self) -> None:
        """What the assistant says next is another message."""
        self._stage = _Stage.NOTHING

    def continue_last(self) -> None:
        """The answer goes on where the last message, of the assistant, ends."""
        self._messages[-1]["prefix"] = True

    def _assistant(self, stage: _Stage, field: str) -> dict[str, Any]:
        """Returns the open message, or a new one after calls or text that `stage` can't follow."""
        if self._stage is _Stage.NOTHING or stage < self._stage:
            self._append({"role": "assistant"}, field)
        self._stage = stage
        return self._messages[-1]

    def _append(self, message: dict[str, Any], field: str) -> None:
        self._messages.append(message)
        self._pieces.append(([], []))
        self._fields.append(field)
