"""What to draw from each row of logits, and what was drawn, as arrays of fixed shapes: what a graph can hold."""

from dataclasses import dataclass
from enum import IntEnum

import torch
import triton.language as tl

# Tokens looked at for supports and for top-k, top-p and min-p, and the most in a support.
MOST = 256


class Kind(IntEnum):
    """Of a draw. A padding row is of the first."""

    LIKELIEST = 0
    GUMBEL = 1
    SUPPORT = 2
    OUTSIDE = 3


class Column(IntEnum):
    """Of a draw's numbers, all float64: 32-bit integers are exact in it."""

    KIND = 0
    TEMPERATURE = 1
    TOP_K = 2
    TOP_P = 3
    MIN_P = 4
    # Whether top-k, top-p or min-p cut anything off.
    IS_CUT = 5
    UNIFORM = 6
    # Of a support to draw from: its limits.
    MAX_SIZE = 7
    MIN_MASS = 8
    # Of a support to draw from outside of: its tokens.
    SUPPORT_SIZE = 9
    KEY_LOW = 10
    KEY_HIGH = 11


class Found(IntEnum):
    """Of what was drawn: its numbers, all float64."""

    TOKEN = 0
    # Of a support.
    SIZE = 1
    # Of probability, outside.
    MASS = 2
    # Whether MOST tokens were enough; otherwise nothing else means anything.
    IS_COMPLETE = 3


@dataclass(frozen=True, slots=True)
class SpecTable:
    """What to draw."""

    numbers: torch.Tensor  # [num_draws, len(Column)] float64
    supports: torch.Tensor  # [num_draws, MOST] int32, behind each support the vocabulary's size


@dataclass(frozen=True, slots=True)
class SampleTable:
    """What was drawn."""

    numbers: torch.Tensor  # [num_draws, len(Found)] float64
    # A support's, likeliest first; the kinds without one leave them as they were.
    ids: torch.Tensor  # [num_draws, MOST] int32
    # On that support, or on the one to draw from outside of.
    probs: torch.Tensor  # [num_draws, MOST] float32


# The same for kernels.
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
MASS, IS_COMPLETE = tl.constexpr(int(Found.MASS)), tl.constexpr(int(Found.IS_COMPLETE))
