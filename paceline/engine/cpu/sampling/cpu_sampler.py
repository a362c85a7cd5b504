"""The CPU's sampler: kernels for the specs they support, torch for the rest."""

from paceline.engine.cpu.sampling.gumbel_sampler import GumbelKernelSampler
from paceline.engine.cpu.sampling.top_k_sampler import TopKKernelSampler
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.torch_sampler import TorchSampler


class CpuSampler(Sampler):
    """Only one thread may use it: the kernels keep their working memory."""

    def __init__(self) -> None:
        super().__init__(GumbelKernelSampler(), TopKKernelSampler(), TorchSampler())
