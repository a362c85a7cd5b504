"""All draws of a step in tensors of fixed shapes, without a word to the host in between: what a graph can hold.

What a draw needs is a row of a `DrawTable`; what comes of it a row of `DrawnTable`. top-k, top-p and min-p look at the
MOST likeliest tokens; a row that needs more says so, and is drawn again by `TensorDraws`, as are draws with no code.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import torch

from paceline.engine.draws import Draw, Drawn, FromOutside, FromSupport, GumbelMax, Likeliest, Outside, Supported
from paceline.engine.kernels.scalars import Array
from paceline.engine.noise import gumbel_of

# Tokens looked at, and the most in a support.
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
    UNIFORM = 5
    MAX_SIZE = 6
    MIN_MASS = 7
    KEY_LOW = 8
    KEY_HIGH = 9


@dataclass(frozen=True, slots=True)
class DrawTable:
    """What to draw."""

    numbers: torch.Tensor  # [num_draws, len(Column)] float64
    supports: torch.Tensor  # [num_draws, MOST] int32, behind each support the vocabulary's size

    def column(self, column: Column) -> torch.Tensor:
        """[num_draws, 1]."""
        return self.numbers[:, column].unsqueeze(1)


@dataclass(frozen=True, slots=True)
class DrawnTable:
    """What was drawn."""

    tokens: torch.Tensor  # [num_draws] int64
    # Of a support: its ids, and how many; of both kinds with one: the probabilities on it.
    ids: torch.Tensor  # [num_draws, MOST] int32
    sizes: torch.Tensor  # [num_draws] int32
    probs: torch.Tensor  # [num_draws, MOST] float32
    masses: torch.Tensor  # [num_draws] float64, outside
    # Whether MOST tokens were enough.
    is_complete: torch.Tensor  # [num_draws] bool


def is_codable(draw: Draw) -> bool:
    """Whether a row of a table can say it."""
    if draw.is_adjusted or draw.is_observed:
        return False
    if isinstance(draw, FromSupport):
        return draw.max_size <= MOST
    if isinstance(draw, FromOutside):
        return len(draw.support) <= MOST
    return isinstance(draw, Likeliest | GumbelMax)


def encode(draws: Seq[Draw], vocab_size: int, numbers: Array, supports: Array) -> None:
    """Writes draws that are codable into the first rows of a table's arrays; the others become padding."""
    numbers[:], supports[:] = 0, vocab_size
    numbers[:, Column.TEMPERATURE] = numbers[:, Column.TOP_P] = 1
    for row, draw in enumerate(draws):
        sampling = draw.sampling
        if sampling.is_greedy or isinstance(draw, Likeliest):
            continue
        own = numbers[row]
        own[Column.TEMPERATURE], own[Column.TOP_K] = sampling.temperature, sampling.top_k
        own[Column.TOP_P], own[Column.MIN_P] = sampling.top_p, sampling.min_p
        match draw:
            case GumbelMax(key=key):
                own[Column.KIND] = Kind.GUMBEL
                own[Column.KEY_LOW], own[Column.KEY_HIGH] = key & 0xFFFFFFFF, key >> 32
            case FromSupport(uniform=uniform, max_size=max_size, min_mass=min_mass):
                own[Column.KIND], own[Column.UNIFORM] = Kind.SUPPORT, uniform
                own[Column.MAX_SIZE], own[Column.MIN_MASS] = max_size, min_mass
            case FromOutside(support=support, uniform=uniform):
                own[Column.KIND], own[Column.UNIFORM] = Kind.OUTSIDE, uniform
                supports[row, : len(support)] = support


def draw_all(logits: torch.Tensor, table: DrawTable) -> DrawnTable:
    """logits: [num_draws, vocab_size] float32."""
    kinds = table.column(Column.KIND)
    below = logits.double() - logits.amax(dim=-1, keepdim=True)
    probs = torch.softmax(below / table.column(Column.TEMPERATURE), dim=-1)
    few = _Few.of(probs, table)
    chosen = {
        Kind.LIKELIEST: logits.argmax(dim=-1, keepdim=True),
        Kind.GUMBEL: torch.where(few.is_cut, _few_gumbel(few, table), _gumbel(probs, table)),
    }
    support_token, kept, sizes = _from_support(few, table)
    outside_token, masses, inside = _from_outside(probs, few, table)
    chosen |= {Kind.SUPPORT: support_token, Kind.OUTSIDE: outside_token}
    tokens = chosen[Kind.LIKELIEST]
    for kind in (Kind.GUMBEL, Kind.SUPPORT, Kind.OUTSIDE):
        tokens = torch.where(kinds == kind, chosen[kind], tokens)
    return DrawnTable(
        tokens=tokens.squeeze(1),
        ids=few.ids.int(),
        sizes=sizes.squeeze(1).int(),
        probs=torch.where(kinds == Kind.OUTSIDE, inside, kept),
        masses=masses.squeeze(1),
        is_complete=(few.is_enough | (kinds == Kind.LIKELIEST)).squeeze(1),
    )


@dataclass(frozen=True, slots=True)
class _Few:
    """Each row's likeliest tokens; where top-k, top-p or min-p cut, with 0 for those cut off, over their sum."""

    ids: torch.Tensor  # [num_draws, most]
    probs: torch.Tensor  # [num_draws, most] float64
    is_cut: torch.Tensor  # [num_draws, 1]: whether there are such parameters
    is_enough: torch.Tensor  # [num_draws, 1]

    @classmethod
    def of(cls, probs: torch.Tensor, table: DrawTable) -> "_Few":
        most, vocab_size = min(MOST, probs.shape[-1]), probs.shape[-1]
        top, ids = probs.topk(most, dim=-1)
        top_k, top_p, min_p = (table.column(each) for each in (Column.TOP_K, Column.TOP_P, Column.MIN_P))
        has_top_k = (top_k > 0) & (top_k < vocab_size)
        rank = torch.arange(most, device=probs.device)
        in_top_k = (rank < top_k) | ~has_top_k
        sums = (top * in_top_k).cumsum(dim=-1)
        total = torch.where(has_top_k, sums[:, -1:], 1.0)
        keep = in_top_k & ((sums - top < top_p * total) | (top_p == 1)) & (top >= min_p * top[:, :1])
        is_cut = has_top_k | (top_p < 1) | (min_p > 0)
        reaches = ((top_p < 1) & (sums[:, -1:] >= top_p)) | (top[:, -1:] < min_p * top[:, :1])
        is_enough = ~is_cut | (top_k <= most) & has_top_k | ~has_top_k & reaches | (most == vocab_size)
        kept = torch.where(is_cut, top * keep, top)
        whole = torch.where(is_cut, kept.sum(dim=-1, keepdim=True), 1.0)
        return cls(ids, kept / whole, is_cut, is_enough)


def _gumbel(probs: torch.Tensor, table: DrawTable) -> torch.Tensor:
    """argmax(log p + noise) over all tokens: [num_draws, 1]."""
    ids = torch.arange(probs.shape[-1], device=probs.device).unsqueeze(0)
    return (probs.log() + _noise(ids, table)).argmax(dim=-1, keepdim=True)


def _few_gumbel(few: _Few, table: DrawTable) -> torch.Tensor:
    best = (few.probs.log() + _noise(few.ids, table)).argmax(dim=-1, keepdim=True)
    return few.ids.gather(1, best)


def _noise(ids: torch.Tensor, table: DrawTable) -> torch.Tensor:
    return gumbel_of(ids, table.column(Column.KEY_LOW).long(), table.column(Column.KEY_HIGH).long())


def _from_support(few: _Few, table: DrawTable) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens from the likeliest few that hold the mass, what they were drawn from (float32), and how many these are."""
    before = few.probs.cumsum(dim=-1) - few.probs
    rank = torch.arange(few.probs.shape[-1], device=few.probs.device)
    keep = (rank < table.column(Column.MAX_SIZE)) & (before < table.column(Column.MIN_MASS)) & (few.probs > 0)
    kept = few.probs * keep
    kept = (kept / kept.sum(dim=-1, keepdim=True).clamp_min(1e-300)).float()
    place, _ = _invert(kept.double(), table.column(Column.UNIFORM))
    padded = torch.nn.functional.pad(kept, (0, MOST - kept.shape[-1]))
    return few.ids.gather(1, place), padded, keep.sum(dim=-1, keepdim=True)


def _from_outside(probs: torch.Tensor, few: _Few, table: DrawTable) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tokens from outside the supports, the mass out there, and the probabilities inside (float32)."""
    supports, uniforms = table.supports.long(), table.column(Column.UNIFORM)
    # One column more, for what stands behind the supports.
    wide = torch.nn.functional.pad(probs, (0, 1))
    inside = wide.gather(1, supports)
    token, mass = _invert(wide.scatter(1, supports, 0.0)[:, :-1], uniforms)
    few_ids, order = few.ids.sort(dim=-1)
    few_probs, most = few.probs.gather(1, order), few.ids.shape[-1]
    places = torch.searchsorted(few_ids, supports).clamp_max(most - 1)
    is_kept = few_ids.gather(1, places) == supports
    few_inside = few_probs.gather(1, places) * is_kept
    left = torch.nn.functional.pad(few_probs, (0, 1)).scatter(1, torch.where(is_kept, places, most), 0.0)[:, :-1]
    place, few_mass = _invert(left, uniforms)
    return (
        torch.where(few.is_cut, few_ids.gather(1, place), token),
        torch.where(few.is_cut, few_mass, mass),
        torch.where(few.is_cut, few_inside, inside).float(),
    )


def _invert(probs: torch.Tensor, uniforms: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Index drawn from each row of unnormalised `probs` by its cumulative sum, and the row's total: both [num_draws, 1].

    The first index whose sum exceeds uniform * total: never one of probability 0, unless all are.
    """
    sums = probs.cumsum(dim=-1)
    index = torch.searchsorted(sums, uniforms * sums[:, -1:], right=True)
    # Where rounding left no larger sum: the first index that has it all.
    last = torch.searchsorted(sums, sums[:, -1:].contiguous())
    return torch.minimum(index, last).clamp_max(probs.shape[-1] - 1), sums[:, -1:]


def decode(draws: Seq[Draw], drawn: Any) -> list[Drawn]:
    """`drawn`: a DrawnTable's arrays on the host, by name. None for a row that must be drawn another way."""
    found: list[Drawn] = []
    for row, draw in enumerate(draws):
        token = int(drawn.tokens[row])
        if not (is_codable(draw) and drawn.is_complete[row]):
            found.append(None)
        elif isinstance(draw, FromSupport):
            size = int(drawn.sizes[row])
            found.append(Supported(token, drawn.ids[row, :size].astype(np.int64), drawn.probs[row, :size].copy()))
        elif isinstance(draw, FromOutside):
            found.append(Outside(token, float(drawn.masses[row]), drawn.probs[row, : len(draw.support)].copy()))
        else:
            found.append(token)
    return found
