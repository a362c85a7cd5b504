"""What the client returns: pieces, completions, traces and the deployment."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paceline.speculation_params import SpeculationParams


@dataclass(frozen=True, slots=True)
class TracedDraft:
    """One draft of a round. Drafts after a rejection or the end of the text are undecided."""

    token_id: int
    # Incomplete characters appear as U+FFFD.
    text: str
    # Accepted and emitted.
    accepted: bool
    # Under `rejection`, if decided: the probabilities of the draft model and the target, and the uniform number. The draft
    # is accepted if r * lenience * q < p.
    q: float | None = None
    p: float | None = None
    r: float | None = None
    # Under `match`, if decided: the target's own token.
    target_id: int | None = None
    target_text: str | None = None


@dataclass(frozen=True, slots=True)
class RoundTrace:
    # 0 for the round of the prompt.
    round: int
    # "model", "ngram", "suffix", "tool_result", "prediction" or "custom"; "none" if nothing was proposed, and the reason.
    drafter: str
    reason: str
    # Requested from the drafter.
    draft_tokens: int
    proposed: list[TracedDraft]
    # Accepted and emitted.
    num_accepted: int
    # Under the entropy rule: the draft model's entropy / ln(vocabulary) at each position.
    entropies: list[float]
    # Smoothed over earlier decided positions.
    smoothed_entropies: list[float]
    # The number of draft tokens that each of these allows.
    allowed_draft_tokens: list[int]
    draft_us: int
    target_us: int
    # Waiting for a device on both servers.
    queued_us: int
    # Messages and event loops.
    rpc_us: int
    # The draft model that proposed; empty if none did.
    draft_model: str = ""


@dataclass(frozen=True, slots=True)
class Speculation:
    rounds: int
    proposed: int
    accepted: int
    proposed_per_position: list[int]
    accepted_per_position: list[int]
    mean_acceptance_length: float
    # None for 1; below 1 the output distribution differs from the target's.
    lenience: float | None = None
    # The probability with which a benchmark accepted drafts at random; the text is meaningless.
    synthetic_acceptance_rate: float | None = None
    # Rounds in which 0, 1, 2, … drafts were accepted and emitted: `rounds` in all.
    rounds_by_accepted: list[int] = field(default_factory=list)
    # Proposed tokens from the request's prediction: accepted and emitted, and not.
    prediction_accepted: int = 0
    prediction_rejected: int = 0
    # Tokens that were the only ones the output's format allowed, and took no forward pass.
    forced: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one generation, in milliseconds."""

    ttft_ms: float
    total_ms: float
    draft_ms: float
    target_ms: float
    queued_ms: float
    rpc_ms: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation, also for the coordinator's metrics, spans and logs."""

    # "stop", "length" or "tool_calls"; empty while the generation runs; "unknown" for another of a newer server.
    reason: str
    prompt_tokens: int
    # Prompt tokens found in the target's prefix cache.
    cached_prompt_tokens: int
    completion_tokens: int
    seed: int
    speculation: Speculation
    timing: Timing
    # Of the completion's.
    reasoning_tokens: int = 0
    # What of the output's format was not enforced, in words.
    unenforced: list[str] = field(default_factory=list)
    # The stop string that ended it; empty if none did.
    matched_stop: str = ""
    # With "length": the model's maximum length was reached before max_tokens.
    context_full: bool = False


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities under the target: the token's, and the likeliest tokens' at its position."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]
    # Offset of the token in the sample's text, in characters; 0 for prompt tokens.
    text_offset: int = 0


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A chunk of a function call. A call's first chunk has its id and name; the others continue its arguments."""

    # Which call of the sample, from 0.
    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True)
class ToolCall:
    id: str
    name: str
    # JSON text: an object, unless the answer was cut.
    arguments: str = ""


def extend_calls(calls: list[ToolCall], deltas: Iterable[ToolCallDelta]) -> None:
    """Adds what is new of a sample's calls."""
    for delta in deltas:
        if delta.index == len(calls):
            calls.append(ToolCall(delta.id, delta.name))
        calls[delta.index].arguments += delta.arguments


@dataclass(frozen=True, slots=True)
class Chunk:
    """One round: tokens, new text, and a letter of origin for each token (A accepted, R recovered, B bonus, T target,
    F forced, ? of a newer server).
    """

    text: str
    token_ids: list[int]
    origins: str
    # Characters of `text` that each token brought.
    text_lengths: list[int] = field(default_factory=list)
    # Index of the sample.
    index: int = 0
    # If requested, one for each token. The prompt's begin at its second token and come in the first chunk; for a long
    # prompt, pieces with nothing else come before it.
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    # If requested.
    trace: RoundTrace | None = None
    # Of reasoning before the answer: what is final.
    reasoning: str = ""
    # With tools: what of the calls is final.
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    # As in Finish, from the first round on.
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    # In the sample's first chunk: digest of what determines the target's tokens.
    identity: str = ""
    # Set in the sample's last chunk.
    finish: Finish | None = None

    @property
    def parts(self) -> Iterator[tuple[str, str]]:
        start = 0
        for length, origin in zip(self.text_lengths, self.origins, strict=True):
            yield self.text[start : start + length], origin
            start += length


@dataclass(slots=True)
class Completion:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    origins: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    # If requested, one for each round.
    traces: list[RoundTrace] = field(default_factory=list)
    reasoning: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, chunk: Chunk) -> None:
        self.text += chunk.text
        self.token_ids += chunk.token_ids
        self.origins += chunk.origins
        self.logprobs += chunk.logprobs
        self.prompt_logprobs += chunk.prompt_logprobs
        if chunk.trace is not None:
            self.traces.append(chunk.trace)
        self.reasoning += chunk.reasoning
        extend_calls(self.tool_calls, chunk.tool_calls)
        self.finish = chunk.finish or self.finish

    def parsed(self, model: Any = None) -> Any:
        """Parses the text as JSON; with a pydantic model class, as one of its objects.

        Raises ValueError, for example if `max_tokens` has cut the text.
        """
        return json.loads(self.text) if model is None else model.model_validate_json(self.text)


@dataclass(frozen=True, slots=True)
class Model:
    """A server's model, as in ModelInfo (proto/paceline/v1/model.proto)."""

    name: str
    dtype: str
    # What the weights are in: "none", "int8", or names of GGUF blocks, e.g. "q4_k+q6_k".
    quantization: str
    # Whose layers: "own" or "transformers".
    implementation: str
    kv_cache_dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    batch_invariant: bool
    # Of the KV cache: tokens in a block, and blocks.
    block_size: int = 0
    total_blocks: int = 0
    free_blocks: int = 0


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """The target's tokenizer; None for tokens that it lacks."""

    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    # In Jinja.
    chat_template: str | None = None
    # Values of reasoning_effort that the chat template refuses.
    refused_efforts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Detokenized:
    text: str
    # The bytes of each token, maybe a part of a character; for a special token its name.
    pieces: list[bytes]
    # Offset of each token in the text, in characters.
    text_offsets: list[int]


@dataclass(frozen=True, slots=True)
class Deployment:
    target: Model
    # None without a draft server.
    draft: Model | None
    # Defaults of a request's open fields.
    defaults: SpeculationParams
    # Running generations, and their limit.
    running: int
    max_num_seqs: int
    version: str
    tokenizer: TokenizerInfo = field(default_factory=TokenizerInfo)
