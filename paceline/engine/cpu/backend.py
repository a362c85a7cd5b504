"""The CPU backend's builder: makes the forward and a cache that fits into memory."""

import os

from paceline.engine.backend import Backend, Progress
from paceline.engine.config import EngineConfig, ModelRole
from paceline.engine.cpu.batch_invariance import find_batch_variant_parts
from paceline.engine.cpu.kernels.pinning import pin_workers
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.cpu.runner import CpuRunner
from paceline.engine.models.config import ModelConfig
from paceline.engine.models.weights import LoadedModel
from paceline.errors import ConfigError

# Keys and values are float32 on a CPU (see `paged_attention`).
CPU_CACHE_ELEMENT_BYTES = 4
# The default of `kv_cache_memory`.
CPU_CACHE_BYTES = 2 << 30
# The default of `block_size`, in tokens. 64 is the fastest (see `kernels.products`).
CPU_BLOCK_SIZE = 64
# Memory for everything other than weights and cache.
RESERVE_BYTES = 512 << 20


def build_cpu(
    config: EngineConfig, role: ModelRole, loaded: LoadedModel, max_model_len: int, progress: Progress
) -> Backend:
    """Builds the backend. Raises ConfigError if the model does not fit into memory, or a setting is bad."""
    weights_bytes = sum(tensor.numel() * tensor.element_size() for tensor in loaded.tensors.values())
    block_size = config.block_size or CPU_BLOCK_SIZE
    num_blocks = _fit_cache(config.kv_cache_memory or CPU_CACHE_BYTES, block_size, loaded.config, weights_bytes)
    model = CpuLlama(loaded.config, loaded.tensors, config.quantization, max_model_len, config.is_batch_invariant(role))
    progress("checking batch invariance")
    dependent = find_batch_variant_parts(model, block_size)
    attention = CpuPagedAttention(loaded.config, num_blocks, block_size)
    runner = CpuRunner(model, attention)
    pin_workers()
    progress("warming up")
    runner.warm_up()
    return Backend(runner, attention.copy_blocks, num_blocks, block_size, dependent)


def _fit_cache(cache_bytes: int, block_size: int, model: ModelConfig, weights_bytes: int) -> int:
    """Number of blocks in the cache. Raises ConfigError with the budget if they do not fit into memory."""
    block_bytes = block_size * model.kv_bytes_per_token(CPU_CACHE_ELEMENT_BYTES)
    num_blocks = cache_bytes // block_bytes
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    budget = (
        f"weights {weights_bytes / 2**20:,.0f} MiB (loaded), KV cache {cache_bytes / 2**20:,.0f} MiB "
        f"({num_blocks} blocks of {block_bytes / 2**20:,.2f} MiB), reserve {RESERVE_BYTES / 2**20:,.0f} MiB, "
        f"available {available / 2**20:,.0f} MiB"
    )
    if num_blocks < 2:
        raise ConfigError(f"kv_cache_memory is too small for two blocks; budget: {budget}")
    if cache_bytes + RESERVE_BYTES > available:
        raise ConfigError(f"not enough memory for the KV cache; lower --kv-cache-memory; budget: {budget}")
    return num_blocks
