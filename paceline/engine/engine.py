"""Builds a model's engine from its configuration: weights, cache, check, worker."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from paceline.engine.attention import PagedAttention
from paceline.engine.block_pool import BlockPool
from paceline.engine.config import EngineConfig, ModelConfig
from paceline.engine.gathering import Gathering
from paceline.engine.kernels.pinning import pin_workers
from paceline.engine.kernels.scalars import CORES, set_num_workers
from paceline.engine.llama import Llama
from paceline.engine.row_invariance import find_dependent_parts
from paceline.engine.runner import Runner
from paceline.engine.turns import Turns
from paceline.engine.weights import load_model
from paceline.engine.worker import Worker
from paceline.errors import ConfigError

# Keys and values are float32 on CPU (see `attention`).
CPU_CACHE_ELEMENT_BYTES = 4
# Left to everything that is neither weights nor cache.
RESERVE_BYTES = 512 << 20


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model with its worker, and what a model card says of it."""

    config: EngineConfig
    model: ModelConfig
    worker: Worker
    pool: BlockPool
    max_model_len: int
    tokenizer_files: dict[str, bytes]
    tokenizer_fingerprint: str
    weights_fingerprint: str
    # Parts whose rows depend on the rows beside them; empty where the same bits are assured.
    dependent_parts: list[str]


def build_engine(
    config: EngineConfig, loop: asyncio.AbstractEventLoop, progress: Callable[[str], None] = lambda _: None
) -> Engine:
    """Loads everything; the worker is not started yet. Raises ConfigError with one line that says what to do.

    Call it on the thread that will run the worker, and let no other thread compute: a second
    thread's OpenMP team counts as oversubscription, and every product gets slower by half.
    """
    if config.device != "cpu":
        raise ConfigError(f"device is {config.device!r}; this version runs on cpu")
    set_num_workers(config.threads or len(CORES))
    progress(f"loading {config.model}")
    loaded = load_model(config.model, config.torch_dtype, progress)
    fingerprint = loaded.tokenizer_fingerprint
    max_model_len = config.max_model_len or loaded.config.max_model_len
    if max_model_len > loaded.config.max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}; {config.model} holds at most {loaded.config.max_model_len}"
        )
    weights_bytes = sum(tensor.numel() * tensor.element_size() for tensor in loaded.tensors.values())
    num_blocks = _fit_cache(config, loaded.config, weights_bytes)
    model = Llama(loaded.config, loaded.tensors, config.quantization, max_model_len, config.same_bits)
    progress("checking row invariance")
    dependent = find_dependent_parts(model, config.block_size)
    attention = PagedAttention(loaded.config, num_blocks, config.block_size)
    pool = BlockPool(num_blocks, config.block_size, attention.copy_blocks, config.prefix_caching)
    runner = Runner(model, attention)
    pin_workers()
    progress("warming up")
    runner.warm_up()
    turns, gathering = Turns(config.turns_file), Gathering(config.waiting)
    worker = Worker(runner, pool, turns, gathering, max_model_len, config.max_batch_tokens, loop)
    return Engine(
        config=config,
        model=loaded.config,
        worker=worker,
        pool=pool,
        max_model_len=min(max_model_len, num_blocks * config.block_size),
        tokenizer_files=loaded.tokenizer_files,
        tokenizer_fingerprint=fingerprint,
        weights_fingerprint=loaded.weights_fingerprint,
        dependent_parts=dependent,
    )


def _fit_cache(config: EngineConfig, model: ModelConfig, weights_bytes: int) -> int:
    """Blocks in the cache. Raises ConfigError with the budget if they do not fit into memory."""
    block_bytes = config.block_size * model.kv_bytes_per_token(CPU_CACHE_ELEMENT_BYTES)
    num_blocks = config.kv_cache_bytes // block_bytes
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    budget = (
        f"weights {weights_bytes / 2**20:,.0f} MiB (loaded), KV cache {config.kv_cache_bytes / 2**20:,.0f} MiB "
        f"({num_blocks} blocks of {block_bytes / 2**20:,.2f} MiB), reserve {RESERVE_BYTES / 2**20:,.0f} MiB, "
        f"available {available / 2**20:,.0f} MiB"
    )
    if num_blocks < 2:
        raise ConfigError(f"kv_cache_memory is too small for two blocks; budget: {budget}")
    if config.kv_cache_bytes + RESERVE_BYTES > available:
        raise ConfigError(f"not enough memory for the KV cache; lower --kv-cache-memory; budget: {budget}")
    return num_blocks
