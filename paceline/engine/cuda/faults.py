"""Faults of a GPU: after some errors every later call of the process fails, for instance after a bad address."""

import torch

from paceline.errors import DeviceLost


def raise_if_lost(device: torch.device, error: Exception) -> None:
    """Asks the GPU whether it still works after `error`. Raises DeviceLost if it does not.

    No list of errors can say this: a launch that was refused or memory that ran out hurts no later call.
    """
    if device.type != "cuda":
        return
    try:
        torch.cuda.synchronize(device)
    except RuntimeError as fault:
        first_line = str(fault).splitlines()[0]
        raise DeviceLost(f"the GPU failed, and this process can't use it any more: {first_line}") from error
