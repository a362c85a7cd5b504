"""The CPU's sampler: kernels for the specs they support, torch for the rest."""

from paceline.engine.arrays import Array
from paceline.engine.cpu.sampling.gumbel_sampler import GumbelKernelSampler
from paceline.engine.cpu.sampling.top_k_sampler import TopKKernelSampler
from paceline.engine.sampling.sampler import Sampler
from paceline.engine.sampling.torch_sampler import TorchSampler


class CpuSampler(Sampler):
    """Only one thread may use it: the kernels keep their working memory."""

    def __init__(self, ids: Array | None = None) -> None:
        """`ids`: [num_logits], the token of each logit; then only specs that `needs_whole_vocab` denies may come, and an int is
        an index among the logits. None: logit i is token i."""
        super().__init__(GumbelKernelSampler(ids), TopKKernelSampler(), TorchSampler())
