"""A generation's context. It lives only here: caches on the servers are prefixes of it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.acceptance import Origin, Outcome, RoundNoise
from coordinator.tokenizer import TextStream
from paceline.results import RoundTrace, TokenLogprobs
from paceline.sampling import SamplingParams
from paceline.speculation import SpeculationParams


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Request:
    request_id: str
    prompt: list[int]
    # Always has a seed.
    sampling: SamplingParams
    speculation: SpeculationParams
    eos_token_ids: tuple[int, ...]
    # The target's limits.
    max_length: int
    vocab_size: int
    # Predicted output; may be empty.
    prediction: list[int] = field(default_factory=list)
    # A chat response's text starts afresh; other completions continue the prompt's text.
    is_chat: bool = False
    # Requests with the same salt share cached prefixes and recent answers.
    cache_salt: str = ""
    trace: bool = False
    # W3C traceparent for the model servers' spans; empty without a trace.
    traceparent: str = ""

    @property
    def seed(self) -> int:
        assert self.sampling.seed is not None, "RequestReader gives every request a seed"
        return self.sampling.seed

    @property
    def max_new_tokens(self) -> int:
        return min(self.sampling.max_tokens, self.max_length - len(self.prompt))

    @property
    def ending_ids(self) -> frozenset[int]:
        """Returns the ids that both servers ban below min_tokens."""
        eos = () if self.sampling.ignore_eos else self.eos_token_ids
        return frozenset((*eos, *self.sampling.stop_token_ids))


@dataclass(slots=True)
class Emission:
    tokens: list[int]
    origins: list[Origin]
    # Per token: the text it completes.
    pieces: list[str]
    is_last: bool
    # One per token if requested.
    logprobs: list[TokenLogprobs]
    # In the first emission if requested: one per prompt token from the second on.
    prompt_logprobs: list[TokenLogprobs]
    trace: RoundTrace | None = None


class Context:
    def __init__(self, request: Request, text: TextStream) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.finish_reason: FinishReason | None = None
        self._text = text
        # Cached: read in every round or for every token.
        self._longest = len(request.prompt) + request.max_new_tokens
        self._ending_ids = request.ending_ids
        self._num_prompt_tokens = len(request.prompt)
        self._stops_from = len(request.prompt) + request.sampling.min_tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - self._num_prompt_tokens

    @property
    def num_remaining(self) -> int:
        return self._longest - len(self.tokens)

    @property
    def draft_room(self) -> int:
        """Returns the next round's limit: it emits one more token than it accepts."""
        return self.num_remaining - 1

    @property
    def round_noise(self) -> RoundNoise:
        return RoundNoise(self.request.seed, len(self.tokens))

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, outcome: Outcome, prompt_logprobs: Sequence[TokenLogprobs] = ()) -> Emission:
        """Appends a round's tokens up to the first that ends the text."""
        if self.num_remaining == 0:
            # max_tokens is 0: the prompt is only read.
            self.finish_reason = FinishReason.LENGTH
            return Emission([], [], [], True, [], list(prompt_logprobs))
        text, length, pieces, text_offsets = self._text, len(self.tokens), [], []
        for token in outcome.tokens:
            length += 1
            text_offsets.append(text.num_characters)
            ends_text = token in self._ending_ids
            pieces.append(text.push(token, is_end=ends_text, may_stop=length >= self._stops_from))
            if ends_text or text.is_stopped:
                self.finish_reason = FinishReason.STOP
            elif length == self._longest:
                self.finish_reason = FinishReason.LENGTH
            else:
                continue
            pieces[-1] += text.finish()
            break
        kept = len(pieces)
        tokens = outcome.tokens[:kept]
        self.tokens += tokens
        logprobs = [
            replace(each, text_offset=at) for each, at in zip(outcome.logprobs[:kept], text_offsets, strict=False)
        ]
        return Emission(tokens, outcome.origins[:kept], pieces, self.is_finished, logprobs, list(prompt_logprobs))
