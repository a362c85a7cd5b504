"""What a job may want of a row's logits, and what it gets: never the logits themselves."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paceline.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class TokensBefore:
    """The tokens before a position, the drafts before it among them."""

    prompt: list[int]
    output: list[int]


@dataclass(frozen=True, slots=True)
class SampleSpec:
    """What all draws have in common."""

    sampling: SamplingParams
    # Tokens that may not be drawn here (see SequenceOptions.banned_token_ids).
    banned: tuple[int, ...]
    # Only where penalties need them.
    before: TokensBefore | None = field(default=None, kw_only=True)
    # Observe log-probabilities, and those of this many likeliest tokens; None: don't.
    num_logprobs: int | None = field(default=None, kw_only=True)
    wants_entropy: bool = field(default=False, kw_only=True)

    @property
    def wants_logprobs(self) -> bool:
        return self.wants_entropy or self.num_logprobs is not None

    @property
    def is_processed(self) -> bool:
        """Whether the model's own logits are not the ones to draw from."""
        sampling = self.sampling
        lists = sampling.allowed_token_ids or sampling.banned_token_ids or self.banned
        return bool(lists or sampling.logit_bias) or self.before is not None

    @property
    def needs_no_token_ids(self) -> bool:
        """Whether it draws by the logits alone, whichever tokens they are of."""
        return False


@dataclass(frozen=True, slots=True)
class Argmax(SampleSpec):
    """The likeliest token. Gives int."""

    @property
    def needs_no_token_ids(self) -> bool:
        return not (self.is_processed or self.wants_logprobs)


@dataclass(frozen=True, slots=True)
class ArgmaxWithLenience(SampleSpec):
    """The likeliest token, and whether `draft` is at least `lenience` times as likely. Gives LenientSample."""

    draft: int
    lenience: float


@dataclass(frozen=True, slots=True)
class GumbelMax(SampleSpec):
    """A token by Gumbel-max with the noise of `key`: who shares the key shares the noise. Gives int."""

    key: int


@dataclass(frozen=True, slots=True)
class SampleTruncated(SampleSpec):
    """A token sampled from the likeliest few, and the distribution it was sampled from. Gives TruncatedSample."""

    uniform: float
    max_size: int
    min_mass: float

    @property
    def needs_no_token_ids(self) -> bool:
        return not (self.is_processed or self.wants_logprobs)


@dataclass(frozen=True, slots=True)
class SampleComplement(SampleSpec):
    """A token sampled from outside `support`, and the probabilities inside. Gives ComplementSample.

    With an empty support: a token from the whole distribution.
    """

    support: NDArray[np.int64]  # [support_size]
    uniform: float


@dataclass(frozen=True, slots=True)
class Score(SampleSpec):
    """No token: the observation of `token` alone, by the model's own distribution. Gives None."""

    token: int

    @property
    def is_processed(self) -> bool:
        return False


@dataclass(frozen=True, slots=True)
class TruncatedSample:
    """Result of SampleTruncated: `token` was sampled from exactly `probs` (over their sum)."""

    token: int
    support: NDArray[np.int64]  # [support_size]
    probs: NDArray[np.float32]  # [support_size]


@dataclass(frozen=True, slots=True)
class ComplementSample:
    """Result of SampleComplement. `token` means nothing where `mass` is 0."""

    token: int
    mass: float
    support_probs: NDArray[np.float32]  # [support_size]


@dataclass(frozen=True, slots=True)
class LenientSample:
    """Result of ArgmaxWithLenience."""

    token: int
    accepts: bool


Sample = int | TruncatedSample | ComplementSample | LenientSample | None
