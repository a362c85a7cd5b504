"""A generation's context. It lives only here: caches on the servers are prefixes of it."""

import enum
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, repeat

from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise
from coordinator.guidance import Guidance
from coordinator.tokenizer import TextStream
from coordinator.tools.chats import AnswerReader, Chats
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
    # What tools returned, as a call would quote it.
    quoted: list[list[int]] = field(default_factory=list)
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
    # Functions that the model may call, and whether the prompt has opened a thought (None: the answer has none).
    tools: Tools | None = None
    opens_thought: bool | None = None
    chats: Chats | None = None

    @property
    def unenforced(self) -> list[str]:
        return [] if self.grammar is None else self.grammar.unenforced

    @property
    def guidance(self) -> Guidance | None:
        """Returns what leads a generation of it; None without a grammar."""
        if self.grammar is None:
            return None
        return Guidance(self.grammar, self.sampling, len(self.prompt), self.ending_ids)

    def answer_reader(self, choice: int) -> AnswerReader | None:
        """Returns the reader of sample `choice`; None if all of it is text."""
        if self.chats is None or (self.tools is None and self.opens_thought is None):
            return None
        # Clients may use a request id twice.
        prompt = hashlib.sha256(str(self.prompt).encode()).hexdigest()
        return self.chats.reader(self.tools, self.opens_thought, f"{self.request_id}/{prompt}", choice)

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
    reasoning: str = ""
    tool_calls: list[ToolCallDelta] = field(default_factory=list)


def no_token_allowed() -> InvalidArgument:
    return InvalidArgument("format", "and the request's token lists allow no token together here")


# Of a forced token.
CERTAIN = TokenLogprobs(0.0, [], [])


class Context:
    def __init__(self, request: Request, text: TextStream, reader: AnswerReader | None = None) -> None:
        """`reader`: None if all of the answer is text."""
        self.request = request
        self._reader = reader
        self.tokens = list(request.prompt)
        self.finish_reason: FinishReason | None = None
        # Tokens that the output's format forced, whether or not they were drafted.
        self.num_forced = 0
        self._text = text
        # Tokens that caches may hold: those before the last one that a round decided.
        self.num_fed = len(request.prompt) - 1
        self._guidance = request.guidance
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

    @property
    def matched_stop(self) -> str:
        """Returns the stop string that has ended the text, or ""."""
        return self._text.matched_stop

    @property
    def is_full(self) -> bool:
        """Returns whether the model's maximum length has ended the text before max_tokens."""
        is_cut = self.request.max_new_tokens < self.request.sampling.max_tokens
        return is_cut and self.finish_reason is FinishReason.LENGTH

    @property
    def tokens_per_choice(self) -> float:
        """Returns how many tokens a choice decides: itself and those that the output's format then forces."""
        num_choices = self.num_generated - self.num_forced
        return self.num_generated / num_choices if num_choices else 1.0

    @property
    def num_reasoning_tokens(self) -> int:
        return 0 if self._reader is None else self._reader.num_reasoning_tokens

    def shape(self, proposal: Proposal) -> Proposal:
        """Applies the output's format to drafts (`Guidance.shape`)."""
        if self._guidance is None or len(proposal.is_forced) == len(proposal):
            return proposal
        return self._guidance.shape(self.tokens, proposal, self.draft_room)

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
        num_before, origins = len(self.tokens), list[Origin]()
        pieces, text_offsets = list[str](), list[int]()
        for index, (token, origin) in enumerate(zip(outcome.tokens, outcome.origins, strict=True)):
            if self.is_finished:
                break
            if index == dead_end:
                raise no_token_allowed()
            text_offsets.append(self._text.num_characters)
            # The same origin whether or not it was drafted. The prompt's round is a forward in any case.
            is_forced = origin is not Origin.TARGET and token == self._forced_token()
            origins.append(Origin.FORCED if is_forced else origin)
            pieces.append(self._append(token))
        self.num_fed = len(self.tokens) - 1
        while not self.is_finished and (forced := self._forced_token()) is not None:
            text_offsets.append(self._text.num_characters)
            pieces.append(self._append(forced))
            origins.append(Origin.FORCED)
        self.num_forced += origins.count(Origin.FORCED)
        logprobs: list[TokenLogprobs] = []
        if outcome.logprobs:
            each_or_certain = zip(chain(outcome.logprobs, repeat(CERTAIN)), origins, text_offsets, strict=False)
            logprobs = [
                replace(CERTAIN if origin is Origin.FORCED else each, text_offset=at)
                for each, origin, at in each_or_certain
            ]
        emission = Emission(
            self.tokens[num_before:], origins, pieces, self.is_finished, logprobs, list(prompt_logprobs)
        )
        if self._reader is not None:
            emission.reasoning, emission.tool_calls = self._reader.take_reasoning(), self._reader.take_deltas()
        return emission

    def _append(self, token: int) -> str:
        """Returns the text that the token completes."""
        self.tokens.append(token)
        ends_text = token in self._ending_ids
        may_stop = len(self.tokens) >= self._stops_from
        piece = self._text.push(token, is_end=ends_text, may_stop=may_stop)
        if self._reader is not None and self._reader.is_mark(token):
            # Text before a mark is no part of what follows it.
            piece += self._text.flush(may_stop)
        if ends_text or self._text.matched_stop or (self._guidance is not None and self._guidance.is_over(self.tokens)):
            self.finish_reason = FinishReason.STOP
        elif len(self.tokens) == self._longest:
            self.finish_reason = FinishReason.LENGTH
        if self._reader is None:
            return piece + self._text.finish() if self.is_finished else piece
        content = self._reader.read(token, piece)
        if self.is_finished:
            content += self._reader.finish(self._text.finish(), self.finish_reason is FinishReason.LENGTH)
            if self._reader.has_whole_call and self.finish_reason is FinishReason.STOP:
                self.finish_reason = FinishReason.TOOL_CALLS
        return content

    def _forced_token(self) -> int | None:
        return None if self._guidance is None else self._guidance.forced(self.tokens)
