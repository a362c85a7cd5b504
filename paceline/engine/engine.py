"""Builds an engine."""

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

import torch

from paceline.engine.backend import BatchCheck, BuildBackend, DraftHeadFacts
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cpu.backend import build_cpu
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.forward_times import MeasuredTimes, measure_times
from paceline.engine.models.model_config import TextConfig
from paceline.engine.models.quantization import DTYPES
from paceline.engine.models.shapes import num_masks
from paceline.engine.models.weights import load_model
from paceline.engine.scheduling.batching_policy import BatchingPolicy
from paceline.engine.scheduling.compute_lock import ComputeLock
from paceline.engine.scheduling.sequence_state import OnClose
from paceline.engine.scheduling.worker import OnStep, Worker
from paceline.engine.threads import CORES, set_num_workers
from paceline.errors import ConfigError

GPU_QUANTIZATIONS = ("auto", "none", "int8")


@dataclass(frozen=True, slots=True)
class Engine:
    """A loaded model with its worker, and the facts for its model info."""

    config: EngineConfig
    model: TextConfig
    worker: Worker
    pool: BlockPool
    max_model_len: int
    tokenizer_files: dict[str, bytes]
    tokenizer_fingerprint: str
    weights_fingerprint: str
    # Masks that the model can fill (see `models.shapes`).
    num_masks: int
    # Draft steps that one program can run after the first.
    multi_steps: int
    check: BatchCheck
    # Of the backend.
    device_ids: list[str]
    quantization: str
    draft_head: DraftHeadFacts | None
    # See `forward_times`; to be called on the device thread.
    measure_forward_times: Callable[[], MeasuredTimes]


def build_engine(
    config: EngineConfig,
    role: ModelRole,
    loop: asyncio.AbstractEventLoop,
    progress: Callable[[str], None] = lambda _: None,
    on_step: OnStep | None = None,
    on_close: OnClose | None = None,
) -> Engine:
    """Loads the model and builds its engine; the caller starts the worker. Raises ConfigError for an invalid setting.

    Call it on the worker's thread. No other thread may compute: a second OpenMP team would oversubscribe the cores.
    """
    set_num_workers(config.threads or len(CORES))
    # A model loaded before it on this thread has pinned it, and threads started to read files would stay on its core.
    os.sched_setaffinity(0, CORES)
    progress(f"loading {config.model}")
    backend_builder = _backend_builder(config, role)
    loaded = load_model(
        config.model, DTYPES[config.dtype], progress, config.device, config.keeps_blocks, config.implementation
    )
    max_model_len = config.max_model_len or loaded.config.max_model_len
    if max_model_len > loaded.config.max_model_len:
        raise ConfigError(
            f"max_model_len is {max_model_len}; {config.model} holds at most {loaded.config.max_model_len}"
        )
    # Read before the slow move to the device, so that an invalid tokenizer fails early.
    fingerprint = loaded.tokenizer_fingerprint
    known_masks = num_masks(loaded.tensors)
    backend = backend_builder(config, role, loaded, max_model_len, progress)
    pool = BlockPool(backend.num_blocks, backend.block_size, backend.copy_blocks, config.prefix_caching, backend.states)
    longest = min(max_model_len, backend.num_blocks * backend.block_size)
    compute_lock, batching_policy = ComputeLock(config.compute_lock_file), BatchingPolicy(config.batch_delay)
    worker = Worker(
        backend.runner, pool, compute_lock, batching_policy, max_model_len, config.max_num_batched_tokens, loop,
        on_step, on_close,
    )  # fmt: skip

    def measure() -> MeasuredTimes:
        head = backend.draft_head
        # While this server has the device to itself.
        with compute_lock.lease():
            most = min(longest, config.max_num_batched_tokens)
            return measure_times(backend.runner, pool, most, None if head is None else head.measure)

    return Engine(
        config=config,
        model=loaded.config,
        worker=worker,
        pool=pool,
        max_model_len=longest,
        tokenizer_files=loaded.tokenizer_files,
        tokenizer_fingerprint=fingerprint,
        weights_fingerprint=loaded.weights_fingerprint,
        num_masks=known_masks,
        multi_steps=backend.multi_steps,
        check=backend.check,
        device_ids=backend.device_ids,
        quantization=backend.quantization,
        draft_head=backend.draft_head,
        measure_forward_times=measure,
    )


def _backend_builder(config: EngineConfig, role: ModelRole) -> BuildBackend:
    if config.device == "cuda":
        if config.kv_cache_dtype != "auto":
            raise ConfigError(
                f"kv_cache_dtype is {config.kv_cache_dtype!r}; on a GPU keys and values have the model's dtype (auto)"
            )
        if config.quantization not in GPU_QUANTIZATIONS:
            allowed = ", ".join(map(repr, GPU_QUANTIZATIONS))
            raise ConfigError(f"quantization is {config.quantization!r}; on a GPU it must be one of {allowed}")
        if role.vocab_size:
            raise ConfigError(
                f"vocab_size is {role.vocab_size}; on a GPU a draft is chosen from the whole vocabulary (0)"
            )
        if not torch.cuda.is_available():
            raise ConfigError("device is 'cuda', but torch finds no CUDA device")
        from paceline.engine.cuda.backend import build_cuda

        return build_cuda
    return build_cpu
