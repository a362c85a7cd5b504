"""The GPU's own clock."""

from collections.abc import Callable

import torch


def gpu_seconds(launch: Callable[[], object], repeats: int = 100) -> float:
    """Seconds of one launch on the GPU, from events around `repeats` of them."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        launch()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats
