"""What the client has of a response, so that another coordinator can repeat it: what was sent is compared and dropped."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from paceline.errors import Aborted
from paceline.results import Chunk, ToolCallDelta


@dataclass(slots=True)
class BufferedChoice:
    token_ids: list[int] = field(default_factory=list)
    # Characters of the reasoning, and of each call's arguments.
    num_reasoning: int = 0
    arguments: list[int] = field(default_factory=list)
    is_finished: bool = False


class AnotherModel(Exception):
    """A coordinator would not repeat a response: its target's tokens may be others."""


class ReplayBuffer:
    """What the client has of a response."""

    def __init__(self) -> None:
        self._choices: dict[int, BufferedChoice] = {}
        # The `Chunk.identity` of the model that generated it.
        self.identity = ""

    def add(self, chunk: Chunk) -> None:
        self.identity = self.identity or chunk.identity
        choice = self._choices.setdefault(chunk.index, BufferedChoice())
        choice.token_ids += chunk.token_ids
        choice.num_reasoning += len(chunk.reasoning)
        for delta in chunk.tool_calls:
            if delta.index == len(choice.arguments):
                choice.arguments.append(0)
            choice.arguments[delta.index] += len(delta.arguments)
        choice.is_finished = chunk.finish is not None

    @property
    def is_empty(self) -> bool:
        return not self._choices

    def snapshot(self) -> dict[int, BufferedChoice]:
        return copy.deepcopy(self._choices)

    @property
    def prediction(self) -> list[int] | None:
        """Returns the longest unfinished choice: correct drafts for a resumption."""
        unfinished = [each.token_ids for each in self._choices.values() if not each.is_finished]
        return max(unfinished, key=len, default=None) or None


class Resumption:
    """Reasoning and calls have no tokens to count; but what was told of them begins what is told again."""

    def __init__(self, replay_buffer: ReplayBuffer) -> None:
        # Of reasoning and calls: what the repetition has not repeated yet.
        self._sent = replay_buffer.snapshot()
        self._identity = replay_buffer.identity
        # Tokens received, by choice.
        self._num_tokens: dict[int, int] = {}

    def new_part(self, chunk: Chunk) -> Chunk | None:
        """Returns what the client lacks of `chunk`. Raises AnotherModel, and Aborted if tokens differ."""
        if self._identity and chunk.identity not in ("", self._identity):
            raise AnotherModel
        choice = self._sent.get(chunk.index)
        if choice is None:
            return chunk
        start = self._num_tokens.get(chunk.index, 0)
        self._num_tokens[chunk.index] = start + len(chunk.token_ids)
        known = choice.token_ids[start:]
        num_known = min(len(known), len(chunk.token_ids))
        if chunk.token_ids[:num_known] != known[:num_known]:
            raise Aborted("the coordinator went away, and the repeated response has other tokens")
        num_reasoning = min(choice.num_reasoning, len(chunk.reasoning))
        choice.num_reasoning -= num_reasoning
        calls = list(_new_calls(chunk.tool_calls, choice.arguments))
        if choice.is_finished or (num_known == len(chunk.token_ids) and chunk.finish is None):
            return None
        return replace(_drop_tokens(chunk, num_known), reasoning=chunk.reasoning[num_reasoning:], tool_calls=calls)


def _new_calls(deltas: Sequence[ToolCallDelta], told: list[int]) -> Iterator[ToolCallDelta]:
    """Drops what was told, and counts it down: `told` are the characters of each call's arguments."""
    for delta in deltas:
        if delta.index >= len(told):
            yield delta
            continue
        num_known = min(told[delta.index], len(delta.arguments))
        told[delta.index] -= num_known
        if num_known < len(delta.arguments):
            yield ToolCallDelta(delta.index, arguments=delta.arguments[num_known:])


def _drop_tokens(chunk: Chunk, num_tokens: int) -> Chunk:
    """Drops prompt log-probabilities and a partial round's trace as well."""
    return replace(
        chunk,
        text=chunk.text[sum(chunk.text_lengths[:num_tokens]) :],
        token_ids=chunk.token_ids[num_tokens:],
        origins=chunk.origins[num_tokens:],
        text_lengths=chunk.text_lengths[num_tokens:],
        logprobs=chunk.logprobs[num_tokens:],
        prompt_logprobs=[],
        trace=chunk.trace if num_tokens == 0 else None,
    )
