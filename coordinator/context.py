"""A generation's context. It lives only here: caches on the servers are prefixes of it."""

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise
from coordinator.tokenizer import TextStream
from coordinator.tools.chats import CallReader, ToolChats
from coordinator.tools.tools import Tools
from paceline.errors import InvalidArgument
from paceline.grammar import Grammar
from paceline.results import RoundTrace, TokenLogprobs, ToolCallDelta
from paceline.sampling import SamplingParams
from paceline.speculation import SpeculationParams


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


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
    # What the output must look like: compiled, and as both servers compile it.
    grammar: Grammar | None = None
    grammar_text: str = ""
    # Functions that the model may call.
    tools: Tools | None = None
    tool_chats: ToolChats | None = None

    @property
    def unenforced(self) -> list[str]:
        return [] if self.grammar is None else self.grammar.unenforced

    def call_reader(self, choice: int) -> CallReader | None:
        """Returns the reader of sample `choice`; None without tools."""
        if self.tools is None or self.tool_chats is None:
            return None
        # Clients may use a request id twice.
        prompt = hashlib.sha256(str(self.prompt).encode()).hexdigest()
        return self.tool_chats.reader(self.tools, f"{self.request_id}/{prompt}", choice)

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
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


# Of a forced token.
CERTAIN = TokenLogprobs(0.0, [], [])


class Context:
    def __init__(self, request: Request, text: TextStream, calls: CallReader | None = None) -> None:
        """`calls`: None without tools."""
        self.request = request
        self._calls = calls
        self.tokens = list(request.prompt)
        self.finish_reason: FinishReason | None = None
        self._text = text
        # Tokens that caches may hold: those before the last one that a round decided.
        self.num_fed = len(request.prompt) - 1
        self._guide = None if request.grammar is None else request.grammar.guide()
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

    def legal(self, proposal: Proposal) -> Proposal:
        """Cuts drafts at the first that the output's format does not allow, which could not be accepted.

        Sampled drafts stay: dropping one for its value would bias the output, and the draft server masks them.
        """
        if self._guide is None or proposal.supports or not proposal.tokens:
            return proposal
        return replace(proposal, tokens=self._guide.legal(self._completion, proposal.tokens))

    def extend(
        self, outcome: Outcome, prompt_logprobs: Sequence[TokenLogprobs] = (), dead_end: int | None = None
    ) -> Emission:
        """Appends a round's tokens up to the first that ends the text, and those that the output's format then forces.

        Raises InvalidArgument if the text goes on to `dead_end`, a position of the round without any token.
        """
        if self.num_remaining == 0:
            # max_tokens is 0: the prompt is only read.
            self.finish_reason = FinishReason.LENGTH
            return Emission([], [], [], True, [], list(prompt_logprobs))
        num_before, pieces, text_offsets = len(self.tokens), list[str](), list[int]()
        for index, token in enumerate(outcome.tokens):
            if self.is_finished:
                break
            if index == dead_end:
                raise InvalidArgument("format", "and the request's token lists allow no token together here")
            text_offsets.append(self._text.num_characters)
            pieces.append(self._append(token))
        self.num_fed = len(self.tokens) - 1
        origins, logprobs = outcome.origins[: len(pieces)], outcome.logprobs[: len(pieces)]
        while not self.is_finished and (forced := self._forced_token()) is not None:
            text_offsets.append(self._text.num_characters)
            pieces.append(self._append(forced))
            origins.append(Origin.FORCED)
            if outcome.logprobs:
                logprobs.append(CERTAIN)
        logprobs = [replace(each, text_offset=at) for each, at in zip(logprobs, text_offsets, strict=False)]
        return Emission(
            self.tokens[num_before:], origins, pieces, self.is_finished, logprobs, list(prompt_logprobs),
            tool_calls=[] if self._calls is None else self._calls.take_deltas(),
        )  # fmt: skip

    def _append(self, token: int) -> str:
        """Returns the text that the token completes."""
        self.tokens.append(token)
        ends_text = token in self._ending_ids
        piece = self._text.push(token, is_end=ends_text, may_stop=len(self.tokens) >= self._stops_from)
        if ends_text or self._text.is_stopped or (self._guide is not None and self._guide.is_over(self._completion)):
            self.finish_reason = FinishReason.STOP
        elif len(self.tokens) == self._longest:
            self.finish_reason = FinishReason.LENGTH
        if self._calls is None:
            return piece + self._text.finish() if self.is_finished else piece
        content = self._calls.read(token, piece)
        if self.is_finished:
            content += self._calls.finish(self._text.finish())
            if self._calls.has_whole_call and self.finish_reason is FinishReason.STOP:
                self.finish_reason = FinishReason.TOOL_CALLS
        return content

    def _forced_token(self) -> int | None:
        """Returns the only token that the output's format allows, unless another field forbids it."""
        if self._guide is None or (token := self._guide.forced(self._completion)) is None:
            return None
        sampling = self.request.sampling
        is_listed = not sampling.allowed_token_ids or token in sampling.allowed_token_ids
        is_early = token in self._ending_ids and len(self.tokens) < self._stops_from
        return token if is_listed and token not in sampling.banned_token_ids and not is_early else None

    @property
    def _completion(self) -> list[int]:
        return self.tokens[self._num_prompt_tokens :]
