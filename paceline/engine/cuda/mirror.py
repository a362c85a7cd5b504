"""Arrays on the host and on the GPU, in one piece of memory each: they move in one copy.

A copy takes the host several microseconds, however small it is.
"""

import math
from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from paceline.engine.arrays import Array

# Kernels need arrays aligned to this many bytes.
ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Field:
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class Mirror:
    def __init__(self, fields: Seq[Field], device: torch.device) -> None:
        """All arrays are zero at first."""
        total = sum(map(_aligned, fields))
        self._host = torch.zeros(total, dtype=torch.uint8, pin_memory=device.type == "cuda")
        self._device = torch.zeros(total, dtype=torch.uint8, device=device)
        self.on_host: list[Array] = [part.numpy() for part in _split(self._host, fields)]
        self.on_device = _split(self._device, fields)

    def send(self) -> None:
        self._device.copy_(self._host, non_blocking=True)

    def fetch(self) -> None:
        self._host.copy_(self._device, non_blocking=True)


def _split(memory: torch.Tensor, fields: Seq[Field]) -> list[torch.Tensor]:
    parts = memory.split([_aligned(field) for field in fields])
    return [
        part[: field.num_bytes].view(field.dtype).view(field.shape) for part, field in zip(parts, fields, strict=True)
    ]


def _aligned(field: Field) -> int:
    return -(-field.num_bytes // ALIGNMENT) * ALIGNMENT
