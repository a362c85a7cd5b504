"""Of all errors of a step, those after which the GPU refuses every call end the process."""

import pytest
import torch

from paceline.engine.cuda.runner import CudaRunner
from paceline.errors import DeviceLost
from tests.engine.cuda.test_runner import make_gpu

BAD_ADDRESS = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be reported later"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> CudaRunner:
    """On a GPU as far as it knows, and each of its steps fails."""
    runner = make_gpu(0).runner

    def fail(shares: object) -> None:
        raise RuntimeError("the step failed")

    monkeypatch.setattr(runner, "_step", fail)
    monkeypatch.setattr(runner, "_device", torch.device("cuda"))
    return runner


def test_a_gpu_that_fails_again_is_lost(runner: CudaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    def synchronize(device: torch.device) -> None:
        raise RuntimeError(BAD_ADDRESS)

    # A fake: only a GPU with a bad address in it answers so.
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    with pytest.raises(
        DeviceLost, match=r"can no longer use it: CUDA error: an illegal memory access was encountered$"
    ):
        runner.step([])


def test_a_gpu_that_works_on_is_not_lost(runner: CudaRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    with pytest.raises(RuntimeError, match="the step failed"):
        runner.step([])
