"""Builds the CUDA backend."""

import time
from collections.abc import Callable
from typing import Any, Protocol

import torch

from paceline.engine.backend import Backend, DraftHeadFacts, Progress, copying
from paceline.engine.cuda.batch_invariance import check_batch_invariance
from paceline.engine.cuda.budget import MemoryBudget, run_largest_step
from paceline.engine.cuda.draft_heads.loading import MakeDrafting, build_cuda_head, load_cuda_head
from paceline.engine.cuda.graph_shapes import GraphShapes
from paceline.engine.cuda.llama import CudaLlama, CudaModel
from paceline.engine.cuda.paged_attention import tiles_at_once
from paceline.engine.cuda.runner import CudaRunner
from paceline.engine.engine_config import EngineConfig, ModelRole
from paceline.engine.head_loading import rows_to_lend, unasked
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.quantization import DTYPES, INT8, NO_QUANTIZATION
from paceline.engine.models.weights import LoadedModel
from paceline.engine.threads import core_ids

# The default of `block_size`, in tokens.
BLOCK_SIZE = 16
# Graphs are captured for contexts up to this many tokens.
GRAPH_TOKENS = 16_384


class Memory(Protocol):
    total: int

    def used(self) -> int:
        """Bytes that this process holds on the device."""
        ...

    def peak_of(self, run: Callable[[], object]) -> int:
        """Returns the peak bytes that `run` takes on top of those used before."""
        ...


class CudaMemory:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.total = torch.cuda.get_device_properties(device).total_memory

    def used(self) -> int:
        # Counts the gaps between tensors that loading leaves.
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def peak_of(self, run: Callable[[], object]) -> int:
        before = torch.cuda.memory_allocated(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        run()
        peak = torch.cuda.max_memory_allocated(self._device) - before
        torch.cuda.empty_cache()
        return peak


def build_cuda(
    config: EngineConfig, role: ModelRole, loaded: LoadedModel[Any], max_model_len: int, progress: Progress
) -> Backend:
    """Raises ConfigError if the kernels can't take the model, or with the budget if it does not fit."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.cuda.set_per_process_memory_fraction(config.gpu_memory_utilization, device)
    progress(f"device: {torch.cuda.get_device_name(device)}")
    return build_on(config, role, loaded, max_model_len, progress, device, CudaMemory(device))


def build_on(
    config: EngineConfig,
    role: ModelRole,
    loaded: LoadedModel[Any],
    max_model_len: int,
    progress: Progress,
    device: torch.device,
    memory: Memory,
) -> Backend:
    block_size, batch_invariant = config.block_size or BLOCK_SIZE, config.is_batch_invariant(role)
    # What every matrix becomes.
    by_role = NO_QUANTIZATION if role.batch_invariant else INT8
    quantization = by_role if config.quantization == "auto" else config.quantization
    dtype, loaded_head, make_drafting = DTYPES[config.dtype], load_cuda_head(config, role, loaded, progress), None
    with torch.inference_mode():
        lent_rows = rows_to_lend(loaded_head, loaded, dtype)
        model = _build_model(loaded, dtype, quantization, max_model_len, batch_invariant, device)
        if loaded_head is not None:
            with unasked(role, progress):
                make_drafting = build_cuda_head(loaded_head, model, lent_rows, config, device)
    graph_shapes = None
    if model.has_graphs:
        graph_shapes = GraphShapes(config.cuda_graph_max_tokens, min(max_model_len, GRAPH_TOKENS), role.multi_steps)
    budget = _fit(config, model, make_drafting, graph_shapes, batch_invariant, device, memory)
    progress(f"budget: {budget}")
    # One more block, which no sequence holds (see `forward_plan`).
    attention, drafting = model.make_cache(budget.num_blocks + 1, block_size), None
    if make_drafting is not None:
        drafting = make_drafting(budget.num_blocks + 1, block_size)
    progress("checking batch invariance")
    check = check_batch_invariance(model, attention, batch_invariant, device)
    runner = CudaRunner(model, attention, batch_invariant, graph_shapes, device, drafting)
    started_s = time.monotonic()
    runner.warm_up(progress)
    if graph_shapes:
        progress(f"graphs captured in {time.monotonic() - started_s:.1f} s")
    multi_steps = role.multi_steps if graph_shapes else 0
    # Triton's interpreter runs on the CPU.
    device_ids = [str(torch.cuda.get_device_properties(device).uuid)] if device.type == "cuda" else core_ids()
    facts, copy_blocks = None, copying(attention.copy_blocks)
    if loaded_head is not None and drafting is not None:
        progress(f"drafts with the head {loaded_head.name} ({loaded_head.format})")
        fingerprint = loaded_head.weights_fingerprint
        facts = DraftHeadFacts(loaded_head.name, loaded_head.format, fingerprint, drafting.measure)
        copy_blocks = copying(attention.copy_blocks, drafting.copy_blocks)
    return Backend(
        runner,
        copy_blocks,
        budget.num_blocks,
        block_size,
        check,
        device_ids,
        quantization,
        multi_steps,
        draft_head=facts,
    )


def _build_model(
    loaded: LoadedModel[Any], dtype: torch.dtype, quantization: str, max_model_len: int, batch_invariant: bool,
    device: torch.device,
) -> CudaModel:  # fmt: skip
    if isinstance(loaded.config, ModelConfig):
        return CudaLlama(loaded.config, loaded.tensors, quantization, max_model_len, batch_invariant, device)
    # Here, because they import torch's compiler, which takes seconds and our own layers do not need.
    from paceline.engine.cuda.modules_model import CudaModules

    return CudaModules(loaded.config, loaded.tensors, dtype, quantization, max_model_len, batch_invariant, device)


@torch.inference_mode()
def _fit(
    config: EngineConfig,
    model: CudaModel,
    make_drafting: MakeDrafting | None,
    graph_shapes: GraphShapes | None,
    batch_invariant: bool,
    device: torch.device,
    memory: Memory,
) -> MemoryBudget:
    """Measures the largest step, at the end of the longest context, with a small trial cache."""
    weights = memory.used()
    block_size = config.block_size or BLOCK_SIZE
    num_rows = min(config.max_num_batched_tokens, model.max_model_len)
    num_blocks = -(-num_rows // block_size)
    trial = model.make_cache(num_blocks + 1, block_size)
    drafting = None if make_drafting is None else make_drafting(num_blocks + 1, block_size)
    activations = memory.peak_of(lambda: run_largest_step(model, trial, num_rows, batch_invariant, device, drafting))
    graphs = 0
    if graph_shapes is not None and isinstance(model, CudaLlama):
        largest, _ = next(graph_shapes.shapes())
        _, result_bytes = tiles_at_once(largest, model.config.num_heads, model.config.head_dim)
        graphs = graph_shapes.bytes(model.config.vocab_size) + result_bytes
        if drafting is not None:
            graphs += drafting.states_bytes(graph_shapes.most_rows())
    return MemoryBudget.fit(
        total=memory.total,
        fraction=config.gpu_memory_utilization,
        weights=weights,
        activations=activations,
        graphs=graphs,
        block=trial.block_bytes + (0 if drafting is None else drafting.block_bytes),
        cache=config.kv_cache_memory,
    )
