"""A generation's context: the tokens so far, and whether and why it has ended.

The context lives here and nowhere else; caches on the servers are prefixes of it.
"""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field

from coordinator.acceptance import Origin, Outcome, RoundNoise
from coordinator.logprobs import TokenLogprobs
from coordinator.text import TextStream
from paceline.results import RoundTrace
from paceline.sampling import SamplingParams
from paceline.speculation import SpeculationParams


class FinishReason(enum.Enum):
    """Why a generation ended."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as accepted: everything resolved."""

    request_id: str
    prompt: list[int]
    # With a seed.
    sampling: SamplingParams
    speculation: SpeculationParams
    eos_token_ids: tuple[int, ...]
    # Most tokens in prompt and completion together, and how many token ids there are: both of the target.
    max_length: int
    vocab_size: int
    # Tokens of what the output will largely be, as the client says; empty if it does not.
    prediction: list[int] = field(default_factory=list)
    # Whether the completion is an answer in a chat, whose text begins anew; else it goes on with the prompt's.
    is_chat: bool = False
    # Requests with the same one share cached prompts and recent answers.
    cache_salt: str = ""
    # The client wants to know how each round came about.
    trace: bool = False
    # Of the request's span, for those of the model servers; "" where there is no trace.
    traceparent: str = ""

    @property
    def seed(self) -> int:
        assert self.sampling.seed is not None, "the servicer gives every request a seed"
        return self.sampling.seed

    @property
    def max_new_tokens(self) -> int:
        return min(self.sampling.max_tokens, self.max_length - len(self.prompt))

    @property
    def ending_ids(self) -> frozenset[int]:
        """Tokens that end the text. Below min_tokens none can come: both servers ban them there."""
        eos = () if self.sampling.ignore_eos else self.eos_token_ids
        return frozenset((*eos, *self.sampling.stop_token_ids))


@dataclass(frozen=True, slots=True)
class Emission:
    """What one round gives the client."""

    tokens: list[int]
    origins: list[Origin]
    # Text each token made certain.
    pieces: list[str]
    is_last: bool
    # Where in the completion's text each token's own begins, in characters.
    text_offsets: list[int]
    # Where asked for: one for each token.
    logprobs: list[TokenLogprobs]
    # Where asked for, in the first emission: one for each prompt token from the second on.
    prompt_logprobs: list[TokenLogprobs]
    # Where asked for.
    trace: RoundTrace | None = None


class Context:
    """Prompt and completion of one generation."""

    def __init__(self, request: Request, text: TextStream) -> None:
        self.request = request
        self.tokens = list(request.prompt)
        self.finish_reason: FinishReason | None = None
        self._text = text
        # Asked for in every round, some for every token.
        self._longest = len(request.prompt) + request.max_new_tokens
        self._ending_ids = request.ending_ids
        self._min_tokens = request.sampling.min_tokens

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.prompt)

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be generated."""
        return self._longest - len(self.tokens)

    @property
    def draft_room(self) -> int:
        """Drafts that the next round can use: it emits one more token than it accepts."""
        return self.num_remaining - 1

    @property
    def round_noise(self) -> RoundNoise:
        """Of the next round, keyed by where it begins."""
        return RoundNoise(self.request.seed, len(self.tokens))

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    def extend(self, outcome: Outcome, prompt_logprobs: Sequence[TokenLogprobs] = ()) -> Emission:
        """Takes a round's tokens up to the first that ends the text; those after it never were."""
        if self.num_remaining == 0:
            # The prompt was to be read and no more.
            self.finish_reason = FinishReason.LENGTH
            return Emission([], [], [], True, [], [], list(prompt_logprobs))
        tokens, pieces, text_offsets = [], [], []
        for token in outcome.tokens:
            self.tokens.append(token)
            tokens.append(token)
            text_offsets.append(self._text.num_characters)
            ends_text = token in self._ending_ids
            pieces.append(self._text.push(token, is_end=ends_text, may_stop=self.num_generated >= self._min_tokens))
            if ends_text or self._text.is_stopped:
                self.finish_reason = FinishReason.STOP
            elif self.num_remaining == 0:
                self.finish_reason = FinishReason.LENGTH
            else:
                continue
            pieces[-1] += self._text.finish()
            break
        kept = len(tokens)
        origins, logprobs = outcome.origins[:kept], outcome.logprobs[:kept]
        return Emission(tokens, origins, pieces, self.is_finished, text_offsets, logprobs, list(prompt_logprobs))
