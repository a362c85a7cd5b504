"""What a client has asked for, validated and tokenized."""

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from coordinator.stop_strings import StopStrings
from coordinator.tools.offered_tools import Tools
from paceline.checks import with_known
from paceline.grammar import Grammar
from paceline.noise import derive_seed, fresh_seed
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Bounds, Drafter, Rule, SpeculationParams
from paceline.suspicion import Fate


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
    # Of `sampling.stop`; None if that is empty.
    stop_strings: StopStrings | None = None
    # Predicted output; may be empty.
    prediction: list[int] = field(default_factory=list)
    # What tools returned, as a call would quote it.
    tool_results: list[list[int]] = field(default_factory=list)
    # A chat response's text starts afresh; other completions continue the prompt's text.
    is_chat: bool = False
    # Requests with the same salt share cached prefixes and recent responses.
    cache_salt: str = ""
    trace: bool = False
    # Of all its samples, should servers die of them.
    fate: Fate = field(default_factory=Fate)
    # Name of the caller's key; None without one.
    owner: str | None = None
    # W3C traceparent for the model servers' spans; empty without a trace.
    traceparent: str = ""
    # What the output must look like: compiled, and as both servers compile it.
    grammar: Grammar | None = None
    grammar_text: str = ""
    # What of its schemas the grammar does not enforce.
    left_out: list[str] = field(default_factory=list)
    # Functions that the model may call, and whether the prompt has opened reasoning (None: the answer has none).
    tools: Tools | None = None
    opens_reasoning: bool | None = None
    # Of all draws, the servers' too (`_noise_seeds`); None: `seed`.
    noise_seed: int | None = None
    # With tools: tells requests with the same id apart.
    prompt_digest: str = ""

    @property
    def unenforced(self) -> list[str]:
        return [] if self.grammar is None else [*self.left_out, *self.grammar.unenforced]

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


def may_use_head(request: Request) -> bool:
    """Returns whether the target's draft head may draft for the request: its server needs to know how a round ends."""
    speculation, length = request.speculation, request.speculation.num_speculative_tokens
    asks_it = speculation.drafter is Drafter.HEAD or (
        speculation.drafter is Drafter.HYBRID and isinstance(length, Bounds)
    )
    return asks_it and speculation.enabled and length != 0 and _target_ends_rounds(request)


def target_decides(request: Request) -> bool:
    """Returns whether the target's own draws alone decide how a round ends and what the next one begins with.

    Under a grammar it begins with tokens that the coordinator appends.
    """
    return _target_ends_rounds(request) and request.grammar is None


def _target_ends_rounds(request: Request) -> bool:
    speculation, sampling = request.speculation, request.sampling
    is_plain = speculation.lenience == 1 and speculation.resolved_rule(sampling) is Rule.MATCH
    return is_plain and sampling.beams == 1


def requests_of_choices(request: Request) -> list[Request]:
    """Gives each sample its own seed; only the first scores the prompt."""
    rest = with_known(request.sampling, prompt_logprobs=None)
    samples = [request] + [
        replace(request, sampling=with_known(rest, seed=derive_seed(request.seed, index)))
        for index in range(1, request.sampling.n)
    ]
    return [replace(each, noise_seed=seed) for each, seed in zip(samples, _noise_seeds(samples), strict=True)]


def _noise_seeds(samples: Sequence[Request]) -> list[int]:
    """Returns the seeds of the generations' draws. `samples`: of one request.

    Under `match` it is the request's: the target's draws alone are the output. Under `rejection` proposals must say nothing
    of the draws that judge them, and would if an earlier request with the same seed had drawn with the same noise: what it
    left (answers, learned rates) or its client (a prediction) decides where and what to propose. So the noise is the
    request's own; with an adaptive length, which depends on what others left, it is new in each generation.
    """
    request, speculation = samples[0], samples[0].speculation
    if not speculation.enabled or speculation.resolved_rule(request.sampling) is Rule.MATCH:
        return [each.seed for each in samples]
    if isinstance(speculation.num_speculative_tokens, Bounds):
        return [fresh_seed() for _ in samples]
    digest = hashlib.blake2b(array("q", [*request.prompt, -1, *request.prediction]), digest_size=8).digest()
    return [derive_seed(each.seed, int.from_bytes(digest, "little")) for each in samples]
