"""Root-mean-square norm (Zhang, Sennrich 2019, equation 4), in as few operations as the library allows."""

import torch
from torch.nn import functional


class RmsNorm:
    """x / rms(x) * weight, over the last dimension.

    On CPU the library's own is eight small operations, its layer norm is one. A row laid
    beside its negative has mean 0 and the variance rms(x)^2: its layer norm is what is wanted.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self._width = weight.shape[0]
        self._eps = eps
        self._mirrors = weight.device.type == "cpu"
        self._weight = torch.cat((weight, weight)) if self._mirrors else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., width]."""
        if not self._mirrors:
            return functional.rms_norm(x, (self._width,), self._weight, self._eps)
        mirrored = torch.cat((x, -x), dim=-1)
        return functional.layer_norm(mirrored, (2 * self._width,), self._weight, None, self._eps)[..., : self._width]
