"""Builds a model's engine from its configuration: weights, cache, check, worker."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.engine.backend import BuildBackend
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.config import EngineConfig, ModelRole
from paceline.engine.cpu.backend import build_cpu
from paceline.engine.dtypes import DTYPES
from paceline.engine.models.config import ModelConfig
from paceline.engine.models.weights import load_model
from paceline.engine.scheduling.batching_policy import BatchingPolicy
from paceline.engine.scheduling.compute_lock import ComputeLock
from paceline.engine.scheduling.worker import Worker
from paceline.engine.threads import CORES, set_num_workers
from paceline.errors import ConfigError


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
    batch_variant_parts: list[str]


def build_engine(
    config: EngineConfig,
    role: ModelRole,
    loop: asyncio.AbstractEventLoop,
    progress: Callable[[str], None] = lambda _: None,
) -> Engine:
    """Loads everything; the worker is not started yet. Raises ConfigError with one line that says what to do.

    Call it on the thread that will run the worker, and let no other thread compute: a second
    thread's OpenMP team counts as oversubscription, and every product gets slower by half.
    """
    set_num_workers(config.threads or len(CORES))
    progress(f"loading {config.model}")
    loaded = load_model(config.model, DTYPES[config.dtype], progress)
    max_model_len = config.max_model_len or loaded.config.max_model_len
    if max_model_len > loaded.config.max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}; {config.model} holds at most {loaded.config.max_model_len}"
        )
    # Before it takes its time to place: a tokenizer that can't be read is found here.
    fingerprint = loaded.tokenizer_fingerprint
    backend = _backend_builder(config.device)(config, role, loaded, max_model_len, progress)
    pool = BlockPool(backend.num_blocks, backend.block_size, backend.copy_blocks, config.prefix_caching)
    compute_lock, batching_policy = ComputeLock(config.compute_lock_file), BatchingPolicy(config.waiting)
    worker = Worker(backend.runner, pool, compute_lock, batching_policy, max_model_len, config.max_batch_tokens, loop)
    return Engine(
        config=config,
        model=loaded.config,
        worker=worker,
        pool=pool,
        max_model_len=min(max_model_len, backend.num_blocks * backend.block_size),
        tokenizer_files=loaded.tokenizer_files,
        tokenizer_fingerprint=fingerprint,
        weights_fingerprint=loaded.weights_fingerprint,
        batch_variant_parts=backend.batch_variant_parts,
    )


def _backend_builder(device: str) -> BuildBackend:
    """Where the model goes. A GPU's needs Triton, which machines without one do not have."""
    if device == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError("device is 'cuda'; torch finds no such device here")
        from paceline.engine.cuda.backend import build_cuda

        return build_cuda
    return build_cpu
