"""Sample specs and samples: what a job may ask of a row's logits, which it never sees itself."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.sampling_params import SamplingParams
from paceline.vocabulary import SharedVocabulary


@dataclass(frozen=True, slots=True)
class TokensBefore:
    prompt: list[int]
    output: list[int]


@dataclass(frozen=True, slots=True)
class SampleSpec:
    sampling: SamplingParams
    # Tokens that may not be sampled for this row (see SequenceOptions.banned_token_ids).
    banned: tuple[int, ...]
    # Set only if the request has penalties.
    before: TokensBefore | None = field(default=None, kw_only=True)
    # Return log-probabilities, also for this many likeliest tokens; None: return nothing.
    num_logprobs: int | None = field(default=None, kw_only=True)
    wants_entropy: bool = field(default=False, kw_only=True)
    # Also return how likely the sampled token was: an int becomes a ConfidentSample.
    wants_confidence: bool = field(default=False, kw_only=True)
    # The tokens that a grammar allows (see `paceline.grammar`).
    mask: NDArray[np.uint32] | None = field(default=None, kw_only=True, compare=False)  # [ceil(vocab_size / 32)]
    # Samples one of these tokens, by the target's ids, which all fields then have. None: any, by the model's own.
    vocabulary: SharedVocabulary | None = field(default=None, kw_only=True)

    @property
    def wants_logprobs(self) -> bool:
        return self.wants_entropy or self.num_logprobs is not None

    @property
    def is_processed(self) -> bool:
        sampling = self.sampling
        lists = sampling.allowed_token_ids or sampling.banned_token_ids or self.banned
        is_changed = bool(lists or sampling.logit_bias) or self.before is not None or self.mask is not None
        return is_changed or self.vocabulary is not None

    @property
    def needs_whole_vocab(self) -> bool:
        """Whether sampling needs a logit for every token. Otherwise a head with fewer tokens may sample."""
        return True


@dataclass(frozen=True, slots=True)
class Argmax(SampleSpec):
    """The likeliest token; int."""

    @property
    def needs_whole_vocab(self) -> bool:
        return self.is_processed or self.wants_logprobs


@dataclass(frozen=True, slots=True)
class ArgmaxWithLenience(SampleSpec):
    """The likeliest token, and whether p(draft) >= lenience * its probability; LenientSample (see `TorchSampler`)."""

    draft: int
    lenience: float


@dataclass(frozen=True, slots=True)
class GumbelMax(SampleSpec):
    """A token by Gumbel-max with the noise of `key`, equal on draft and target; int."""

    key: int

    @property
    def needs_whole_vocab(self) -> bool:
        return self.is_processed or self.wants_logprobs or not self.sampling.is_untruncated


@dataclass(frozen=True, slots=True)
class SampleTruncated(SampleSpec):
    """A token sampled from the likeliest few, and their distribution; TruncatedSample."""

    uniform: float
    max_size: int
    min_mass: float

    @property
    def needs_whole_vocab(self) -> bool:
        return self.is_processed or self.wants_logprobs


@dataclass(frozen=True, slots=True)
class SampleComplement(SampleSpec):
    """A token sampled from outside `support` (empty: from all), and the probabilities inside; ComplementSample."""

    support: NDArray[np.int64]  # [support_size]
    uniform: float


@dataclass(frozen=True, slots=True)
class Score(SampleSpec):
    """Only the log-probability of `token` in the model's unprocessed distribution; None."""

    token: int

    @property
    def is_processed(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class TruncatedSample:
    """Result of SampleTruncated: `token` was sampled from exactly `probs`, normalized."""

    token: int
    support: NDArray[np.int64]  # [support_size]
    probs: NDArray[np.float32]  # [support_size]


@dataclass(frozen=True, slots=True)
class ConfidentSample:
    """Result of Argmax or GumbelMax with `wants_confidence`."""

    token: int
    # The token's probability at the request's temperature, at 1 if that is 0; before truncation. In [0, 1].
    confidence: float


@dataclass(frozen=True, slots=True)
class ComplementSample:
    """Result of SampleComplement. If `mass`, the probability outside the support, is 0, `token` is meaningless."""

    token: int
    mass: float
    support_probs: NDArray[np.float32]  # [support_size]


@dataclass(frozen=True, slots=True)
class LenientSample:
    """Result of ArgmaxWithLenience."""

    # The likeliest token.
    token: int
    accepts: bool


Sample = int | ConfidentSample | TruncatedSample | ComplementSample | LenientSample | None
