"""The CPU's sampler: kernels where they know the kind of spec, torch for the rest."""

from paceline.engine.cpu.sampling.gumbel_sampler import GumbelKernelSampler
from paceline.engine.cpu.sampling.top_k_sampler import TopKKernelSampler
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.torch_sampler import TorchSampler


class CpuSampler(Sampler):
    """Belongs to one thread: the kernels keep memory to work in."""

    def __init__(self) -> None:
        super().__init__(GumbelKernelSampler(), TopKKernelSampler(), TorchSampler())
