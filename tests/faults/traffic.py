"""What of a Session has passed a proxy: which commands are with the server."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import DecodeError

from paceline.v1 import model_pb2
from tests.faults.frames import DATA, Frame, MessageReader

# A command that brings so many tokens reads a prompt.
PROMPT_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Command:
    """A Propose or Verify."""

    command_id: int
    num_tail_tokens: int

    @property
    def reads_prompt(self) -> bool:
        return self.num_tail_tokens >= PROMPT_TOKENS


class Traffic:
    """One connection's, read from its frames."""

    def __init__(self) -> None:
        self._commands: dict[int, MessageReader] = {}
        self._answers: dict[int, MessageReader] = {}
        # Streams whose client has said all it had to say: no Sessions.
        self._ended: set[int] = set()
        # The Session's.
        self.stream = 0
        # Commands that the server has, and whose answers have not come out of it, by their ids.
        self.with_server: dict[int, Command] = {}

    def commands_in(self, frame: Frame) -> list[Command]:
        """The Propose and Verify commands that the frame completes."""
        if frame.ends_stream:
            self._ended.add(frame.stream)
        if frame.kind != DATA or frame.ends_stream:
            return []
        found = []
        for message in self._commands.setdefault(frame.stream, MessageReader()).feed(frame.payload):
            for command in _decode(model_pb2.SessionRequest, message, "commands"):
                if (kind := command.WhichOneof("command")) in ("propose", "verify"):
                    found.append(Command(command.command_id, len(getattr(command, kind).tail_tokens)))
        if found:
            self.stream = frame.stream
        return found

    def note_passed(self, commands: list[Command]) -> None:
        self.with_server |= {each.command_id: each for each in commands}

    def note_answers(self, frame: Frame) -> list[int]:
        """The ids of the commands that the frame answers, if it holds whole messages and nothing else."""
        if frame.kind != DATA or frame.stream in self._ended:
            return []
        reader = self._answers.setdefault(frame.stream, MessageReader())
        begins = reader.is_between
        messages = reader.feed(frame.payload)
        ids = [
            each.command_id for message in messages for each in _decode(model_pb2.SessionResponse, message, "answers")
        ]
        known = [each for each in ids if self.with_server.pop(each, None) is not None]
        return known if begins and reader.is_between else []

    def has_with_server(self, wanted: Callable[[Command], bool]) -> bool:
        return any(wanted(each) for each in self.with_server.values())


def _decode(message_class: Any, message: bytes, name: str) -> list[Any]:
    try:
        return list(getattr(message_class.FromString(message), name))
    except DecodeError:
        # Of a call that is no Session.
        return []
