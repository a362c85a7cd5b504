"""The forward pass of transformers' modules on a GPU, over a flat batch (see `cpu.modules`).

It is not captured in graphs: transformers' code, and ours for experts, may wait for numbers of the GPU.
"""

import torch
from torch.nn import functional

from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.llama import NO_STATES, States
from paceline.engine.cuda.paged_attention import CudaPagedAttention, Scoring, require_head_dim
from paceline.engine.cuda.products import CudaLinear, make_cuda_linear
from paceline.engine.models.model_config import TextConfig
from paceline.engine.models.shapes import Tensors, Weight
from paceline.engine.modules.attention_interface import LayerForm, LayerGroup, grouped
from paceline.engine.modules.build import build_modules
from paceline.engine.modules.hidden_states import recorded_states
from paceline.engine.modules.probe import probe, run
from paceline.errors import ConfigError


class CudaMatrix:
    def __init__(self, linear: CudaLinear, rows: torch.Tensor | None) -> None:
        """rows: [vocab_size, hidden_size], of an embedding."""
        self._linear, self._rows = linear, rows

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        return self._linear(x.contiguous())

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        assert self._rows is not None, "only embeddings are looked up"
        return functional.embedding(ids, self._rows)


def _group_of(forms: dict[int, LayerForm]) -> LayerGroup:
    group, *others = grouped(forms)
    if others:
        raise ConfigError("layers differ in heads or head_dim; on a GPU they must be equal")
    require_head_dim(group.head_dim)
    return group


def scoring_of(form: LayerForm, device: torch.device) -> Scoring:
    sinks = None if form.sinks is None else form.sinks.detach().float().to(device)
    return Scoring(form.scale, form.cap, form.window, sinks)


class PagedStep:
    """Attention of one forward pass."""

    def __init__(self, scoring: dict[int, Scoring], cache: CudaPagedAttention, plan: ForwardPlan) -> None:
        self._scoring, self._cache, self._plan = scoring, cache, plan
        self._slots = plan.slots.long()

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        for cache, rows in ((self._cache.keys, key), (self._cache.values, value)):
            # [num_blocks * block_size, kv_heads, head_dim]
            cache[layer].flatten(0, 1).index_copy_(0, self._slots, rows.transpose(0, 1))
        queries = query.transpose(0, 1).contiguous()
        return self._cache.attend(layer, queries, self._plan, self._scoring[layer]).flatten(1)


class CudaModules:
    has_graphs = False

    def __init__(
        self, config: TextConfig, tensors: Tensors, dtype: torch.dtype, quantization: str, max_model_len: int,
        batch_invariant: bool, device: torch.device,
    ) -> None:  # fmt: skip
        """Moves the tensors to the GPU. Raises ConfigError if the engine can't run the model."""
        self.config, self.max_model_len = config, max_model_len
        self.dtype, self._device = dtype, device
        self.num_bytes = 0

        def make(weight: Weight, bias: torch.Tensor | None, is_looked_up: bool) -> CudaMatrix:
            assert isinstance(weight, torch.Tensor), "GGUF files are converted for a GPU"
            placed = weight.to(device)
            linear = make_cuda_linear(placed, bias, quantization, batch_invariant, device)
            self.num_bytes += linear.num_bytes
            return CudaMatrix(linear, placed if is_looked_up else None)

        self._model = build_modules(config, tensors, dtype, make).to(device)
        forms, rules = probe(self._model, device)
        if rules:
            raise ConfigError(f"layer {min(rules)} is recurrent; such layers run on a CPU only")
        self._group = _group_of(forms)
        self._scoring = {layer: scoring_of(form, device) for layer, form in forms.items()}

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention:
        num_layers, _, num_kv_heads, head_dim = self._group
        return CudaPagedAttention(num_layers, num_blocks, block_size, num_kv_heads, head_dim, self.dtype, self._device)

    def forward(
        self, plan: ForwardPlan, attention: CudaPagedAttention, out: torch.Tensor, states: States = NO_STATES
    ) -> torch.Tensor:
        """Writes the plan's tokens to the cache, the wanted logits to out: [num_wanted, vocab_size] float32, and `states`."""
        # Padding rows have position -1.
        rows = plan.tokens.long(), plan.positions.clamp_min(0).long(), plan.wanted.long()
        step = PagedStep(self._scoring, attention, plan)
        if not states:
            return out.copy_(run(self._model, *rows, step))
        with recorded_states(self._model, tuple(states)) as recorded:
            out.copy_(run(self._model, *rows, step))
        for read, state in zip(states.values(), recorded, strict=True):
            read.copy_(state[0])
        return out

    def project(self, normed: torch.Tensor) -> torch.Tensor:
        """normed: [num_rows, hidden_size] -> [num_rows, vocab_size] float32."""
        logits: torch.Tensor = self._model.get_output_embeddings().weight.matrix.multiply(normed)
        return logits.float()

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [num_rows] -> [num_rows, hidden_size]."""
        rows: torch.Tensor = self._model.get_input_embeddings()(tokens.long())
        return rows

    def new_logits(self, num_rows: int) -> torch.Tensor:
        """Returns an uninitialized [num_rows, vocab_size] float32 for `forward`."""
        return torch.empty((num_rows, self.config.vocab_size), device=self._device)
