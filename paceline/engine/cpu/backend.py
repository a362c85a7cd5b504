"""Builds the CPU backend, with a cache that fits into memory.

A process that exceeds its container's limit is killed without any message.
"""

import contextlib
import ctypes
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from paceline.engine.backend import Backend, BatchCheck, DraftHeadFacts, Progress, copying
from paceline.engine.cache.state_pool import SNAPSHOT_TOKENS, num_slots_for
from paceline.engine.cpu.batch_invariance import check_batch_invariance
from paceline.engine.cpu.head_building import KINDS, build_head
from paceline.engine.cpu.head_drafting import CpuHeadDrafting, head_block_bytes
from paceline.engine.cpu.kernels.processor import pin_workers
from paceline.engine.cpu.kernels.quantized.instructions import DOT
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.narrow_head import NarrowHead, draft_vocab_size
from paceline.engine.cpu.paged_attention import CACHE_DTYPES, make_layout
from paceline.engine.cpu.runner import CpuModel, CpuRunner
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.head_loading import LoadedHead, load_head, rows_to_lend, unasked
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.gguf.tensors import FileTensor, Parts
from paceline.engine.models.model_config import ModelConfig, TextConfig
from paceline.engine.models.quantization import DTYPES
from paceline.engine.models.shapes import Tensors
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
    config: EngineConfig, role: ModelRole, loaded: LoadedModel[Any], max_model_len: int, progress: Progress
) -> Backend:
    """Builds the backend. Raises ConfigError if the model does not fit into memory or a setting is invalid."""
    weights_bytes = _num_bytes(loaded.tensors)
    block_size = config.block_size or CPU_BLOCK_SIZE

    def fit(block_bytes: int, head_bytes: int, slot_bytes: int = 0, logits_bytes: int = 0) -> int:
        cache_bytes = config.kv_cache_memory or CPU_CACHE_BYTES
        return _fit_cache(cache_bytes, block_bytes, weights_bytes + head_bytes, slot_bytes, block_size, logits_bytes)

    head = load_head(config, role, loaded, progress)
    build = _build_llama if isinstance(loaded.config, ModelConfig) else _build_modules
    model, num_blocks, run_check, drafting = build(config, role, loaded, max_model_len, block_size, fit, head, progress)
    is_narrow = isinstance(model.head, NarrowHead)
    num_first = draft_vocab_size(role.vocab_size, loaded.config.vocab_size)
    if role.vocab_size and num_first and not is_narrow:
        raise ConfigError(
            f"vocab_size is {num_first}; this draft's head can't be narrowed: it has a list of its own tokens, "
            f"transformers' layers, or {config.dtype} weights that a library multiplies with. Leave vocab_size out"
        )
    if is_narrow:
        progress(f"drafts are chosen from the first {num_first:,} tokens and those of their context")
    loaded.drop_pages()
    if model.is_quantized:
        progress(f"quantized weights are multiplied with {DOT.name}")
    progress("checking batch invariance")
    check = run_check(block_size)
    attention = model.make_cache(num_blocks, block_size)
    runner = CpuRunner(model, attention, drafting)
    pin_workers()
    progress("warming up")
    runner.warm_up()
    give_back_freed()
    facts, copy_blocks = None, copying(attention.copy_blocks)
    if head is not None and drafting is not None:
        progress(f"drafts with the head {head.name} ({head.format})")
        facts = DraftHeadFacts(head.name, head.format, head.weights_fingerprint, drafting.measure)
        copy_blocks = copying(attention.copy_blocks, drafting.copy_blocks)
    return Backend(
        runner,
        copy_blocks,
        num_blocks,
        block_size,
        check,
        core_ids(),
        model.quantization,
        states=attention.states,
        draft_head=facts,
    )


def _num_bytes(tensors: Tensors) -> int:
    return sum(map(_bytes_of, tensors.values()))


def _bytes_of(tensor: torch.Tensor | FileTensor | Parts) -> int:
    if isinstance(tensor, torch.Tensor):
        return tensor.numel() * tensor.element_size()
    parts = (tensor,) if isinstance(tensor, FileTensor) else tensor
    return sum(part.data.nbytes for part in parts)


# The model, its number of blocks, `check(block_size)`, and what drafts for it.
_Built = tuple[CpuModel, int, Callable[[int], BatchCheck], CpuHeadDrafting | None]


def _build_llama(
    config: EngineConfig, role: ModelRole, loaded: LoadedModel[ModelConfig], max_model_len: int, block_size: int,
    fit: Callable[..., int], head: LoadedHead | None, progress: Progress,
) -> _Built:  # fmt: skip
    cache_dtype, shape, dtype = CACHE_DTYPES[config.kv_dtype], loaded.config, CACHE_DTYPES[config.dtype]
    block_bytes, lent_rows = make_layout(shape, shape.num_layers, block_size, cache_dtype).block_bytes, None
    if head is not None:
        assert isinstance(head, LoadedDraftHead), "our own layers have no other head"
        layer = head.config.layer
        block_bytes += head_block_bytes(layer, layer.hidden_size, block_size, dtype, cache_dtype)
        lent_rows = rows_to_lend(head, loaded, DTYPES[config.dtype])
    num_blocks = fit(block_bytes, 0 if head is None else _num_bytes(head.tensors))
    model = CpuLlama(
        shape,
        loaded.tensors,
        config.quantization,
        # No sequence is longer than the cache, so the rotary tables need not be either.
        min(max_model_len, num_blocks * block_size),
        config.is_batch_invariant(role),
        cache_dtype,
        draft_vocab_size(role.vocab_size, shape.vocab_size),
    )
    drafting = None
    if head is not None:
        built = build_head(head, model, lent_rows, config, model.max_model_len)
        drafting = KINDS[head.format].drafting(model, built, num_blocks, block_size, dtype, cache_dtype)
    return model, num_blocks, partial(check_batch_invariance, model), drafting


def _build_modules(
    config: EngineConfig, role: ModelRole, loaded: LoadedModel[TextConfig], max_model_len: int, block_size: int,
    fit: Callable[..., int], head: LoadedHead | None, progress: Progress,
) -> _Built:  # fmt: skip
    # Here, because they import torch's compiler, which takes seconds and our own layers do not need.
    from paceline.engine.cpu.forward_invariance import check_forward
    from paceline.engine.cpu.modules_model import CpuModules

    cache_dtype, dtype = CACHE_DTYPES[config.kv_dtype], CACHE_DTYPES[config.dtype]
    lent_rows = rows_to_lend(head, loaded, DTYPES[config.dtype])
    model = CpuModules(
        loaded.config,
        loaded.tensors,
        DTYPES[config.dtype],
        config.quantization,
        max_model_len,
        config.is_batch_invariant(role),
        cache_dtype,
    )
    num_rows = min(config.max_num_batched_tokens, max_model_len)
    block_bytes, of_model, built = model.block_bytes(block_size), (model.slot_bytes, model.logits_bytes(num_rows)), None
    num_blocks = fit(block_bytes, 0, *of_model)
    if head is not None:
        with unasked(role, progress):
            head_bytes = _num_bytes(head.tensors)
            longest = min(max_model_len, num_blocks * block_size)
            built = build_head(head, model, lent_rows, config, longest)
            block_bytes += head_block_bytes(built.kv_shape, built.hidden_size, block_size, dtype, cache_dtype)
    if built is not None:
        num_blocks = fit(block_bytes, head_bytes, *of_model)
    drafting = None
    if head is not None and built is not None:
        drafting = KINDS[head.format].drafting(model, built, num_blocks, block_size, dtype, cache_dtype)
    return model, num_blocks, partial(check_forward, model), drafting


def _fit_cache(
    cache_bytes: int, block_bytes: int, weights_bytes: int, slot_bytes: int, block_size: int, logits_bytes: int = 0
) -> int:
    """Returns the number of blocks, of `block_size` tokens. Raises ConfigError if they do not fit.

    slot_bytes: of a recurrent state (see `num_slots_for`), 0 if there is none; logits_bytes: of a step that holds them all.
    """
    share = -(-slot_bytes * block_size // SNAPSHOT_TOKENS)
    num_blocks = max(0, cache_bytes - 2 * slot_bytes) // (block_bytes + share)
    num_slots = num_slots_for(num_blocks * block_size)
    states = f", {num_slots} recurrent states of {slot_bytes / 2**20:,.2f} MiB" if slot_bytes else ""
    available = available_bytes()
    logits = f"logits {logits_bytes / 2**20:,.0f} MiB, " if logits_bytes else ""
    budget = (
        f"weights {weights_bytes / 2**20:,.0f} MiB (loaded), KV cache {cache_bytes / 2**20:,.0f} MiB "
        f"({num_blocks} blocks of {block_bytes / 2**20:,.2f} MiB{states}), {logits}reserve {RESERVE_BYTES / 2**20:,.0f} MiB, "
        f"available {available / 2**20:,.0f} MiB"
    )
    if num_blocks < 2:
        raise ConfigError(f"kv_cache_memory is too small for two blocks; budget: {budget}")
    if cache_bytes + logits_bytes + RESERVE_BYTES > available:
        options = "--kv-cache-memory or --max-num-batched-tokens" if logits_bytes else "--kv-cache-memory"
        raise ConfigError(f"not enough memory for the KV cache; lower {options}; budget: {budget}")
    return num_blocks
