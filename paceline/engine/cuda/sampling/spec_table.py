"""Tables of sample specs and samples in fixed shapes, for graphs."""

from dataclasses import dataclass
from enum import IntEnum

import torch
import triton.language as tl

# How many likeliest tokens of a row supports, top-k, top-p and min-p look at; the maximum size of a support.
MOST = 256


class Kind(IntEnum):
    # Argmax.
    LIKELIEST = 0
    # GumbelMax.
    GUMBEL = 1
    # SampleTruncated.
    SUPPORT = 2
    # SampleComplement.
    OUTSIDE = 3


class Column(IntEnum):
    """Columns of a spec. float64 holds 32-bit integers exactly."""

    KIND = 0
    TEMPERATURE = 1
    TOP_K = 2
    TOP_P = 3
    MIN_P = 4
    # Whether top-k, top-p or min-p may remove tokens.
    IS_CUT = 5
    UNIFORM = 6
    # Limits of a SUPPORT spec's support.
    MAX_SIZE = 7
    MIN_MASS = 8
    # Number of tokens in an OUTSIDE spec's support.
    SUPPORT_SIZE = 9
    # The halves of a GUMBEL spec's key.
    KEY_LOW = 10
    KEY_HIGH = 11
    # Whether a LIKELIEST or GUMBEL sample needs its probability.
    WANTS_CONFIDENCE = 12


class Found(IntEnum):
    """Columns of a sample, float64."""

    TOKEN = 0
    # Number of tokens in a SUPPORT sample's support.
    SIZE = 1
    # Probability outside an OUTSIDE spec's support.
    MASS = 2
    # Whether MOST tokens were enough. If not, the row's other values have no meaning.
    IS_COMPLETE = 3
    # Probability of the token, if the spec wants it.
    CONFIDENCE = 4


@dataclass(frozen=True, slots=True)
class SpecTable:
    numbers: torch.Tensor  # [num_rows, len(Column)] float64
    supports: torch.Tensor  # [num_rows, MOST] int32, of OUTSIDE specs, each padded with vocab_size


@dataclass(frozen=True, slots=True)
class SampleTable:
    numbers: torch.Tensor  # [num_rows, len(Found)] float64
    # A SUPPORT sample's support, likeliest first. Undefined for other kinds.
    ids: torch.Tensor  # [num_rows, MOST] int32
    # Probabilities on a SUPPORT sample's support, or on an OUTSIDE spec's support.
    probs: torch.Tensor  # [num_rows, MOST] float32


# The constants above, for kernels.
FEW = tl.constexpr(MOST)
NUM_COLUMNS, NUM_FOUND = tl.constexpr(len(Column)), tl.constexpr(len(Found))
LIKELIEST, GUMBEL = tl.constexpr(int(Kind.LIKELIEST)), tl.constexpr(int(Kind.GUMBEL))
SUPPORT, OUTSIDE = tl.constexpr(int(Kind.SUPPORT)), tl.constexpr(int(Kind.OUTSIDE))
KIND, TEMPERATURE = tl.constexpr(int(Column.KIND)), tl.constexpr(int(Column.TEMPERATURE))
TOP_K, TOP_P = tl.constexpr(int(Column.TOP_K)), tl.constexpr(int(Column.TOP_P))
MIN_P, IS_CUT = tl.constexpr(int(Column.MIN_P)), tl.constexpr(int(Column.IS_CUT))
UNIFORM, MAX_SIZE = tl.constexpr(int(Column.UNIFORM)), tl.constexpr(int(Column.MAX_SIZE))
MIN_MASS, SUPPORT_SIZE = tl.constexpr(int(Column.MIN_MASS)), tl.constexpr(int(Column.SUPPORT_SIZE))
KEY_LOW, KEY_HIGH = tl.constexpr(int(Column.KEY_LOW)), tl.constexpr(int(Column.KEY_HIGH))
TOKEN, SIZE = tl.constexpr(int(Found.TOKEN)), tl.constexpr(int(Found.SIZE))
WANTS_CONFIDENCE, CONFIDENCE = tl.constexpr(int(Column.WANTS_CONFIDENCE)), tl.constexpr(int(Found.CONFIDENCE))
MASS, IS_COMPLETE = tl.constexpr(int(Found.MASS)), tl.constexpr(int(Found.IS_COMPLETE))
