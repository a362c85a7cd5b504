"""Builds the CPU backend, with a cache that fits into memory.

A process that exceeds its container's limit is killed without any message.
"""

import contextlib
import ctypes
from pathlib import Path

from paceline.engine.backend import Backend, Progress
from paceline.engine.config import EngineConfig, ModelRole
from paceline.engine.cpu.batch_invariance import check_batch_invariance
from paceline.engine.cpu.draft_head import DraftHead, draft_vocab_size
from paceline.engine.cpu.kernels.processor import pin_workers
from paceline.engine.cpu.kernels.quantised.instructions import DOT
from paceline.engine.cpu.linear import QuantisedLinear
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.paged_attention import CACHE_DTYPES, make_layout
from paceline.engine.cpu.runner import CpuRunner
from paceline.engine.models.gguf.tensors import FileTensor
from paceline.engine.models.weights import LoadedModel
from paceline.engine.threads import core_ids
from paceline.errors import ConfigError

MEMINFO = Path("/proc/meminfo")
# Control groups, version 2 and version 1: folder, limit, usage.
GROUPS = (
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current"),
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes", "memory.usage_in_bytes"),
)


def available_bytes() -> int:
    """Returns the bytes available without swapping or reaching a container's limit."""
    return min([_of_machine(), *_of_groups()])


def give_back_freed() -> None:
    """Returns freed memory to the system, which glibc alone would keep. Does nothing with other C libraries."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _of_machine() -> int:
    fields = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024


def _of_groups() -> list[int]:
    """Returns the bytes left in each control group. Cached files count as usage but can be reclaimed."""
    left = []
    for folder, limit_name, usage_name in GROUPS:
        try:
            limit = (folder / limit_name).read_text().strip()
            usage = int((folder / usage_name).read_text())
            statistics = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        except OSError:
            continue
        if limit != "max":
            left.append(int(limit) - usage + int(statistics.get("inactive_file", 0)))
    return left


# The default of `kv_cache_memory`.
CPU_CACHE_BYTES = 2 << 30
# The default of `block_size`, in tokens. 64 is the fastest (see `kernels.products`).
CPU_BLOCK_SIZE = 64
# Memory for everything other than weights and cache.
RESERVE_BYTES = 512 << 20


def build_cpu(
    config: EngineConfig, role: ModelRole, loaded: LoadedModel, max_model_len: int, progress: Progress
) -> Backend:
    """Builds the backend. Raises ConfigError if the model does not fit into memory or a setting is invalid."""
    weights_bytes = sum(
        tensor.data.nbytes if isinstance(tensor, FileTensor) else tensor.numel() * tensor.element_size()
        for tensor in loaded.tensors.values()
    )
    block_size = config.block_size or CPU_BLOCK_SIZE
    cache_dtype = CACHE_DTYPES[config.kv_dtype]
    block_bytes = make_layout(loaded.config, loaded.config.num_layers, block_size, cache_dtype).block_bytes
    num_blocks = _fit_cache(config.kv_cache_memory or CPU_CACHE_BYTES, block_bytes, weights_bytes)
    # No sequence is longer than the cache, so the rotary tables need not be either.
    longest = min(max_model_len, num_blocks * block_size)
    num_first = draft_vocab_size(role.vocab_size, loaded.config.vocab_size)
    model = CpuLlama(
        loaded.config,
        loaded.tensors,
        config.quantization,
        longest,
        config.is_batch_invariant(role),
        cache_dtype,
        num_first,
    )
    is_narrow = isinstance(model.head, DraftHead)
    if role.vocab_size and num_first and not is_narrow:
        raise ConfigError(
            f"vocab_size is {num_first}; this draft's head can't be narrowed: it has a list of its own tokens, or "
            f"{config.dtype} weights that a library multiplies with. Leave vocab_size out"
        )
    if is_narrow:
        progress(f"drafts are chosen from the first {num_first:,} tokens and those of their context")
    loaded.drop_pages()
    if any(isinstance(linear, QuantisedLinear) for linear in (model.layers[0].qkv, model.head.linear)):
        progress(f"quantised weights are multiplied with {DOT.name}")
    progress("checking batch invariance")
    check = check_batch_invariance(model, block_size)
    attention = model.make_cache(num_blocks, block_size)
    runner = CpuRunner(model, attention)
    pin_workers()
    progress("warming up")
    runner.warm_up()
    give_back_freed()
    return Backend(runner, attention.copy_blocks, num_blocks, block_size, check, core_ids())


def _fit_cache(cache_bytes: int, block_bytes: int, weights_bytes: int) -> int:
    """Returns the number of blocks. Raises ConfigError if they do not fit."""
    num_blocks = cache_bytes // block_bytes
    available = available_bytes()
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
