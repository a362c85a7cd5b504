"""What a generation's context needs of whatever reads its answer; the readers are in `coordinator.tools`."""

from typing import Protocol

from paceline.results import ToolCallDelta


class AnswerReader(Protocol):
    """Splits an answer, token by token, into its reasoning, its text and its calls."""

    num_reasoning_tokens: int

    @property
    def has_whole_call(self) -> bool: ...

    def is_mark(self, token: int) -> bool:
        """Returns whether the text so far must be read before this token's."""

    def read(self, token: int, text: str) -> str:
        """Returns what stands outside of reasoning and calls. `text`: what the token completes."""

    def finish(self, text: str, is_cut: bool) -> str: ...

    def take_reasoning(self) -> str:
        """Returns the reasoning found since the last time."""

    def take_deltas(self) -> list[ToolCallDelta]:
        """Returns the parts of calls found since the last time."""
