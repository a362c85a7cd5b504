"""What a client gets from a coordinator, as plain values: rounds as they come, whole generations, descriptions."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline.speculation import SpeculationParams


@dataclass(frozen=True, slots=True)
class TracedDraft:
    """One draft of a round. Drafts after a rejection, or after the end of the text, are undecided."""

    token_id: int
    # Bytes that are no whole character come out as U+FFFD.
    text: str
    # Accepted and emitted.
    accepted: bool
    # Under `rejection`, if decided: the draft's probability, the target's, and a uniform number. The draft is accepted if
    # r * lenience * q < p.
    q: float | None = None
    p: float | None = None
    r: float | None = None
    # Under `match`, if decided: the target's own choice.
    target_id: int | None = None
    target_text: str | None = None


@dataclass(frozen=True, slots=True)
class RoundTrace:
    """One round: one run of the target. Times in microseconds."""

    # 0 for the prompt's round.
    round: int
    # The drafter's name, or "none" if nothing was proposed, with the reason.
    drafter: str
    reason: str
    # Tokens asked of the drafter.
    draft_tokens: int
    proposed: list[TracedDraft]
    # Accepted and emitted.
    num_accepted: int
    # Under the entropy rule: the draft's entropy / ln(vocabulary) at each position that it reached.
    entropies: list[float]
    # The same, smoothed with those of decided positions before.
    smoothed_entropies: list[float]
    # The draft tokens that each of these allows in this round.
    allowed_draft_tokens: list[int]
    draft_us: int
    target_us: int
    # Waiting for a device on either server.
    queued_us: int
    # Messages and event loops.
    wire_us: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """What speculation did in one generation."""

    rounds: int
    proposed: int
    accepted: int
    proposed_per_position: list[int]
    accepted_per_position: list[int]
    mean_acceptance_length: float
    # Set if below 1: the output's distribution is not exactly the target's.
    lenience: float | None = None
    # In benchmarks: the chance with which drafts were accepted. The output is not real text.
    synthetic_acceptance: float | None = None
    # Rounds in which 0, 1, 2, … drafts were accepted and emitted: `rounds` in all.
    rounds_by_accepted: list[int] = field(default_factory=list)
    # Drafts from the request's prediction that were accepted and emitted, and the others.
    prediction_accepted: int = 0
    prediction_rejected: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """How one generation's time was spent, in milliseconds."""

    ttft_ms: float
    total_ms: float
    draft_ms: float
    target_ms: float
    queued_ms: float
    wire_ms: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of a generation. The coordinator's metrics, spans and logs read it too."""

    # "stop" or "length"; empty while the generation runs.
    reason: str
    prompt_tokens: int
    # Found in the target's cache (prefix caching).
    cached_prompt_tokens: int
    completion_tokens: int
    seed: int
    speculation: Speculation
    timing: Timing


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """A token's log-probability under the target, and the likeliest tokens' at its position."""

    logprob: float
    top_token_ids: list[int]
    top_logprobs: list[float]
    # Offset of the token in the sample's text, in characters; 0 for prompt tokens.
    text_offset: int = 0


@dataclass(frozen=True, slots=True)
class Piece:
    """One round: its tokens, a letter of origin for each (A accepted, R recovered, B bonus, T target), and new text."""

    text: str
    token_ids: list[int]
    origins: str
    # Characters of `text` that each token brought.
    text_lengths: list[int] = field(default_factory=list)
    # Index of the sample.
    index: int = 0
    # If asked for: one for each token; and in the first piece one for each prompt token from the second on. For a long
    # prompt, pieces with nothing else precede it.
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    # If asked for: how the round came about.
    trace: RoundTrace | None = None
    # As in Finish, from the first round on.
    prompt_tokens: int = 0
    cached_prompt_tokens: int = 0
    # Set in the sample's last piece.
    finish: Finish | None = None

    @property
    def parts(self) -> Iterator[tuple[str, str]]:
        """Yields the text of each token with its letter of origin."""
        start = 0
        for length, origin in zip(self.text_lengths, self.origins, strict=True):
            yield self.text[start : start + length], origin
            start += length


@dataclass(slots=True)
class Completion:
    """A whole generation."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    origins: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    # If asked for: one for each round.
    traces: list[RoundTrace] = field(default_factory=list)
    finish: Finish | None = None

    def add(self, piece: Piece) -> None:
        self.text += piece.text
        self.token_ids += piece.token_ids
        self.origins += piece.origins
        self.logprobs += piece.logprobs
        self.prompt_logprobs += piece.prompt_logprobs
        if piece.trace is not None:
            self.traces.append(piece.trace)
        self.finish = piece.finish or self.finish


@dataclass(frozen=True, slots=True)
class Model:
    """A server's model; ModelCard in proto/paceline/v1/model.proto describes the fields."""

    name: str
    dtype: str
    quantization: str
    kv_cache_dtype: str
    device: str
    vocab_size: int
    max_model_len: int
    batch_invariant: bool


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """The target's tokenizer; None for tokens that it lacks."""

    bos_token: str | None = None
    eos_token: str | None = None
    pad_token: str | None = None
    unk_token: str | None = None
    # In Jinja.
    chat_template: str | None = None


@dataclass(frozen=True, slots=True)
class Detokenized:
    """Text of tokens."""

    text: str
    # The bytes of each token, maybe a part of a character; for a special token its name.
    pieces: list[bytes]
    # Offset of each token in the text, in characters.
    text_offsets: list[int]


@dataclass(frozen=True, slots=True)
class Deployment:
    """A coordinator with its servers."""

    target: Model
    # None without a draft server.
    draft: Model | None
    # Defaults of a request's open fields.
    defaults: SpeculationParams
    # Running generations, and their limit.
    running: int
    max_running: int
    version: str
    tokenizer: TokenizerInfo = field(default_factory=TokenizerInfo)
