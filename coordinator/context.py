"""A generation's context. It lives only here: caches on the servers are prefixes of it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.acceptance import Origin, Outcome, Proposal, RoundNoise
from coordinator.answer_reader import AnswerReader
from coordinator.guidance import Guidance
from coordinator.request import Request, target_decides
from coordinator.tokenizer import TextStream
from paceline.errors import InvalidArgument
from paceline.results import RoundTrace, TokenLogprobs, ToolCallDelta


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"


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


# Forced tokens between turns of others.
MAX_FORCED_AT_ONCE = 32
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
        # Whether `append_forced` has more to do.
        self.has_more_forced = False
        # Whether the target can tell by itself how a round ends, and what the next one begins with.
        self.target_decides = target_decides(request)
        self._text = text
        # Tokens that caches may hold: those before the last one that a round decided.
        self.num_fed = len(request.prompt) - 1
        self._guidance = (
            None
            if request.grammar is None
            else Guidance(request.grammar, request.sampling, len(request.prompt), request.ending_ids)
        )
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
        request = self.request
        return RoundNoise(request.seed if request.noise_seed is None else request.noise_seed, len(self.tokens))

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None

    @property
    def continued(self) -> Sequence[int]:
        """Returns the tokens that a request with the calls' results will continue, or none without calls.

        The output's format forced the last ones, so that no round has fed them.
        """
        return self.tokens if self.finish_reason is FinishReason.TOOL_CALLS else ()

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
        self, outcome: Outcome, prompt_logprobs: Sequence[TokenLogprobs] = (), first_invalid_position: int | None = None
    ) -> Emission:
        """Appends a round's tokens up to the first that ends the text, and the first that the output's format then forces.

        Raises InvalidArgument if the text goes on to `first_invalid_position`, a position of the round without any token.
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
            if index == first_invalid_position:
                raise no_token_allowed()
            text_offsets.append(self._text.num_characters)
            # The same origin whether or not it was drafted. The prompt's round is a forward pass in any case.
            is_forced = origin is not Origin.TARGET and token == self._forced_token()
            origins.append(Origin.FORCED if is_forced else origin)
            pieces.append(self._append(token))
        self.num_fed = len(self.tokens) - 1
        self.num_forced += origins.count(Origin.FORCED)
        logprobs = [
            replace(CERTAIN if origin is Origin.FORCED else each, text_offset=at)
            for each, origin, at in zip(outcome.logprobs, origins, text_offsets, strict=False)
        ]
        emission = Emission(
            self.tokens[num_before:], origins, pieces, self.is_finished, logprobs, list(prompt_logprobs)
        )
        self.append_forced(emission)
        return emission

    def append_forced(self, emission: Emission) -> None:
        """Appends the next tokens that the output's format forces; `has_more_forced` if there may be more.

        A token of a long fixed text takes a time that grows with what is left of the text.
        """
        for _ in range(MAX_FORCED_AT_ONCE):
            forced = None if self.is_finished else self._forced_token()
            self.has_more_forced = forced is not None
            if forced is None:
                break
            if emission.logprobs:
                emission.logprobs.append(replace(CERTAIN, text_offset=self._text.num_characters))
            emission.pieces.append(self._append(forced))
            emission.tokens.append(forced)
            emission.origins.append(Origin.FORCED)
            self.num_forced += 1
        emission.is_last = self.is_finished
        if self._reader is not None:
            emission.reasoning += self._reader.take_reasoning()
            emission.tool_calls += self._reader.take_deltas()

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
