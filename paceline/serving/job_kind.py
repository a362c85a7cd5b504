"""A kind of job: how a model server's commands that feed the model become jobs, and their results answers."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar

from paceline.engine.engine import Engine
from paceline.engine.scheduling.commands import Command
from paceline.errors import InvalidArgument
from paceline.v1 import model_pb2


class JobKind(ABC):
    """Executes commands of `Command.command`. A server executes the kinds that it registers with its servicer."""

    # The fields of Command that concern it, and the class of its jobs' results.
    commands: ClassVar[tuple[str, ...]]
    result_class: ClassVar[type]
    # Whether it can answer in the token ids of another vocabulary than the model's.
    takes_vocabulary: ClassVar[bool] = False

    def __init__(self, engine: Engine) -> None:
        self._vocab_size = engine.model.vocab_size

    @abstractmethod
    def parse(self, command: model_pb2.Command) -> Command:
        """Converts the command. Raises InvalidArgument."""

    def split(self, result: Any) -> Iterable[Any]:
        """Splits a job's result into messages, the answer last. By default it is one."""
        return (result,)

    @abstractmethod
    def fill(self, answer: model_pb2.Answer, result: Any) -> None:
        """Writes a job's result, or a part of it, to its answer."""

    def check_tokens(self, name: str, tokens: Iterable[int]) -> None:
        """Raises InvalidArgument for an id that the model does not have."""
        check_ids(name, tokens, self._vocab_size)


def check_ids(name: str, tokens: Iterable[int], vocab_size: int) -> None:
    """Raises InvalidArgument for an id outside the vocabulary."""
    worst = max(tokens, default=0)
    # The text is made only for an error: this runs for every command.
    if worst >= vocab_size:
        raise InvalidArgument.of_value(name, worst, f"token ids in [0, {vocab_size})")
