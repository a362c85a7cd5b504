"""What a job may want of a row's logits, and what it gets: never the logits themselves."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Draw:
    """What all draws have in common."""

    sampling: SamplingParams
    # Tokens that may not be drawn here (see SequenceOptions.banned_token_ids).
    banned: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Likeliest(Draw):
    """The likeliest token. Gives int."""


@dataclass(frozen=True, slots=True)
class GumbelMax(Draw):
    """A token by Gumbel-max with the noise of `key`: who shares the key shares the noise. Gives int."""

    key: int


@dataclass(frozen=True, slots=True)
class FromSupport(Draw):
    """A token sampled from the likeliest few, and the distribution it was sampled from. Gives Supported."""

    uniform: float
    max_size: int
    min_mass: float


@dataclass(frozen=True, slots=True)
class FromOutside(Draw):
    """A token sampled from outside `support`, and the probabilities inside. Gives Outside.

    With an empty support: a token from the whole distribution.
    """

    support: NDArray[np.int64]  # [support_size]
    uniform: float


@dataclass(frozen=True, slots=True)
class Supported:
    """Result of FromSupport: `token` was sampled from exactly `probs` (over their sum)."""

    token: int
    support: NDArray[np.int64]  # [support_size]
    probs: NDArray[np.float32]  # [support_size]


@dataclass(frozen=True, slots=True)
class Outside:
    """Result of FromOutside. `token` means nothing where `mass` is 0."""

    token: int
    mass: float
    support_probs: NDArray[np.float32]  # [support_size]


Drawn = int | Supported | Outside
