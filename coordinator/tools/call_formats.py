"""How models write their tool calls, as data.

A message is text, calls or both: text first. Begin and end markers stand around each call, or around all calls of a message.
"""

from collections.abc import Container
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CallFormat:
    """The texts in and around a call, as the model's chat template writes them.

    A call is a JSON object with a name and arguments; with an `arguments_marker`, the name, the marker and the arguments.
    """

    name: str
    begin: str
    # Behind the begin marker, and before the end marker.
    opening: str = ""
    closing: str = ""
    end: str = ""
    # Between calls, with the markers if they stand around each call.
    separator: str = ""
    marks_each: bool = True
    arguments_key: str = "arguments"
    arguments_marker: str = ""
    # A call at the message's beginning needs no begin marker.
    is_bare: bool = False
    # The model may write a bare object or a fenced one instead, with nothing that tells it from text but a tool's name.
    is_loose: bool = False
    # Its chat template refuses ids of calls that are not 9 letters and digits.
    has_short_ids: bool = False

    @property
    def is_list(self) -> bool:
        """Whether the calls are a JSON list."""
        return self.opening.endswith("[")

    @property
    def sign(self) -> str:
        """Returns what tells the format, in a chat template or a vocabulary."""
        return self.arguments_marker or self.begin


HERMES = CallFormat("hermes", "<tool_call>", "\n", "\n", "</tool_call>", separator="\n", is_loose=True)
# In this order: fine-tunes of Llama and Mistral keep the vocabulary, but their templates write Hermes's calls; and
# vocabularies with [ARGS] have [TOOL_CALLS] too.
CALL_FORMATS = (
    HERMES,
    CallFormat("mistral", "[TOOL_CALLS]", arguments_marker="[ARGS]", has_short_ids=True),
    CallFormat("mistral-list", "[TOOL_CALLS]", "[", "]", separator=", ", marks_each=False, has_short_ids=True),
    CallFormat(
        "llama", "<|python_tag|>", separator="; ", marks_each=False, arguments_key="parameters", is_bare=True
    ),
)  # fmt: skip


def find_call_format(chat_template: str | None, vocabulary: Container[str]) -> CallFormat:
    """Returns the first format that the chat template shows, else one of the vocabulary, else Hermes."""
    in_template = (each for each in CALL_FORMATS if chat_template and each.sign in chat_template)
    in_vocabulary = (each for each in CALL_FORMATS if each.sign in vocabulary)
    return next(in_template, None) or next(in_vocabulary, HERMES)
