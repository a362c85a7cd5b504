"""Times on the GPU."""

from collections.abc import Callable

import torch


def gpu_seconds(launch: Callable[[], object], repeats: int = 100) -> float:
    """Returns seconds per launch, from events around `repeats` launches."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(repeats):
        launch()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 1e3 / repeats
