"""Random numbers as a pure function of a key.

Every draw names its key, so a retried command repeats its answer and a seed repeats its text. Under `match` the key is
(seed, position), so the draft may use the target's noise. Under `rejection` it is (seed, the round's first position,
position, purpose): reusing the noise of a discarded attempt in a later round would bias the output. So would the noise of
an earlier request, which `coordinator.request` keeps apart.

`paceline.engine.sampling.torch_sampler` makes the same integers in torch.
"""

import enum
import functools
import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

MASK_64 = 2**64 - 1
# Multipliers of a well-tested two-round 32-bit mix (C. Wellons, "lowbias32").
MIX_1 = 0x21F0AAAD
MIX_2 = 0x735A2D97


class Purpose(enum.IntEnum):
    """Use of a number. Numbers for different purposes are independent."""

    MATCH = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3
    OUTSIDE = 4
    BONUS = 5


def _splitmix(state: int) -> int:
    """One step of SplitMix64, a bijection of 64-bit integers."""
    state = (state + 0x9E3779B97F4A7C15) & MASK_64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK_64
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & MASK_64
    return state ^ (state >> 31)


def make_key(seed: int, round_start: int, position: int, purpose: Purpose) -> int:
    """Returns 64 bits. Under `match` pass round_start 0 and Purpose.MATCH."""
    return _splitmix(_splitmix(_round_key(seed, round_start) ^ position) ^ int(purpose))


@functools.lru_cache(maxsize=1024)
def _round_key(seed: int, round_start: int) -> int:
    """Cached, because the keys of a round's rows all begin with it."""
    return _splitmix(_splitmix(seed) ^ round_start)


def match_key(seed: int, position: int) -> int:
    """Returns the key shared by the target's draw at `position` and a coupled draft."""
    return make_key(seed, 0, position, Purpose.MATCH)


def uniform(key: int) -> float:
    """Returns a number in (0, 1), from 53 bits: never 0, never 1."""
    return ((_splitmix(key) >> 12) + 0.5) / 2**52


def hash_ids(key: int, ids: int | NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """Returns a 32-bit integer per token id; a number means the ids below it."""
    x = (np.arange(ids) if isinstance(ids, int) else ids).astype(np.uint32) ^ np.uint32(key & 0xFFFFFFFF)
    with np.errstate(over="ignore"):
        x = (x ^ (x >> np.uint32(16))) * np.uint32(MIX_1)
        x = x + np.uint32(key >> 32)
        x = (x ^ (x >> np.uint32(15))) * np.uint32(MIX_2)
    return x ^ (x >> np.uint32(15))


def gumbel(key: int, ids: int | NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Returns Gumbel noise per token id; a number means the ids below it. Float32 would get the tail of a large
    vocabulary wrong.
    """
    u = (hash_ids(key, ids).astype(np.float64) + 0.5) / 2**32
    return -np.log(-np.log1p(-u))


def fresh_seed() -> int:
    """Makes a seed of 63 bits, so that it fits a signed integer."""
    return secrets.randbits(63)


def derive_seed(seed: int, sample: int) -> int:
    return seed if sample == 0 else _splitmix(_splitmix(seed) ^ sample)
