"""Noise from keys, in torch: the same integers as `paceline.noise`, on any device."""

import torch

from paceline.noise import MIX_1, MIX_2

MASK_32 = 0xFFFFFFFF


def hash_ids(ids: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """One 32-bit integer for each key and token id: [num_keys, num_ids].

    `low` and `high` are the halves of the keys: [num_keys, 1]; ids: [num_keys, num_ids], or [1, num_ids] for all keys.
    All are int64.
    """
    # int64 products overflow, but their low 32 bits equal those of the unsigned product.
    x = ids ^ low
    x = ((x ^ (x >> 16)) * MIX_1) & MASK_32
    x = (x + high) & MASK_32
    x = ((x ^ (x >> 15)) * MIX_2) & MASK_32
    return x ^ (x >> 15)


def gumbel_of(ids: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    """Gumbel noise for each key and token id, float64: [num_keys, num_ids]."""
    u = (hash_ids(ids, low, high).to(torch.float64) + 0.5) / 2**32
    return -torch.log(-torch.log1p(-u))


def gumbel(keys: list[int], num_ids: int, device: torch.device) -> torch.Tensor:
    """Gumbel noise for each key and all token ids, float64: [num_keys, num_ids]."""
    low = torch.tensor([key & MASK_32 for key in keys], device=device).unsqueeze(1)
    high = torch.tensor([key >> 32 for key in keys], device=device).unsqueeze(1)
    return gumbel_of(torch.arange(num_ids, device=device).unsqueeze(0), low, high)
