"""The part of a call's parser that styles of arguments use."""

import json
from abc import abstractmethod

from coordinator.tools.json_scanner import JsonScanner, Reading


class ArgumentsReader(JsonScanner):
    """A cursor in the text of a call, whose arguments leave as JSON."""

    @abstractmethod
    def emit(self, json_text: str) -> None:
        """Gets the next piece of the arguments' JSON."""

    @abstractmethod
    def pass_value(self) -> Reading[bool]:
        """Takes a JSON value and emits it as it is written; returns whether it has an end."""

    def emit_text(self, text: str) -> None:
        """Emits a part of a JSON string."""
        self.emit(json.dumps(text, ensure_ascii=False)[1:-1])
