"""The forward pass of transformers' modules on a CPU, over a flat batch."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch, TokenSpan
from paceline.engine.cache.state_pool import StatePool, num_slots_for
from paceline.engine.cpu.elementwise import Recorder, WholeVectors
from paceline.engine.cpu.head import DenseRows, EmbeddingRows, Head
from paceline.engine.cpu.kernels.attention import (
    NO_SINKS,
    AttentionPlan,
    HeadRotation,
    Scoring,
    attend_by,
    part_address,
)
from paceline.engine.cpu.kernels.cache import Cache
from paceline.engine.cpu.kernels.scalars import ELEMENTS, bits_of, pad_rows, tensor_of
from paceline.engine.cpu.linear import BFLOAT16_LINEARS, CpuLinear, QuantizedLinear, make_cpu_linear
from paceline.engine.cpu.paged_attention import CpuPagedAttention, make_layout
from paceline.engine.cpu.states import CpuStates, plan_states, slot_bytes
from paceline.engine.models.model_config import TextConfig
from paceline.engine.models.quantization import formats_of
from paceline.engine.models.shapes import Tensors, Weight, as_tensor
from paceline.engine.modules.attention_interface import LayerForm, grouped
from paceline.engine.modules.build import build_modules
from paceline.engine.modules.hidden_states import recorded_states
from paceline.engine.modules.probe import probe, run
from paceline.engine.modules.recurrent_interface import Rule


class CpuMatrix:
    def __init__(self, linear: CpuLinear, rows: EmbeddingRows | None, dtype: np.dtype[Any]) -> None:
        """`rows`: of an embedding, in `dtype`."""
        self.linear = linear
        self._rows = rows
        self._dtype = dtype

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        rows = bits_of(x.contiguous())
        return tensor_of(self.linear(pad_rows(rows, self.linear.padded(len(rows)))))[: len(rows)]

    def rows(self, ids: torch.Tensor) -> torch.Tensor:
        assert self._rows is not None, "only embeddings are looked up"
        return tensor_of(self._rows.rows(ids.numpy(), self._dtype))


def make_matrix(
    weight: Weight, bias: torch.Tensor | None, is_looked_up: bool, make: Callable[..., CpuLinear], dtype: torch.dtype
) -> CpuMatrix:
    linear = make(weight, bias)
    rows: EmbeddingRows | None = None
    if isinstance(linear, BFLOAT16_LINEARS) or (
        isinstance(linear, QuantizedLinear) and not isinstance(weight, torch.Tensor)
    ):
        rows = linear
    elif is_looked_up:
        # A tensor that the linear has rounded, or has in another order.
        rows = DenseRows(bits_of(as_tensor(weight, dtype)))
    return CpuMatrix(linear, rows, np.dtype(ELEMENTS[dtype]))


class ModulesPlan(NamedTuple):
    positions: Array  # [num_rows]
    groups: list[AttentionPlan]
    states: Array | None  # As `plan_states`; None without recurrent layers


class ModulesCache:
    """The caches of all groups, with the same blocks, and the states of recurrent layers."""

    def __init__(
        self, forms: dict[int, LayerForm], rules: dict[int, Rule], num_blocks: int, block_size: int, dtype: np.dtype[Any]
    ) -> None:  # fmt: skip
        groups = grouped(forms)
        self._groups = [CpuPagedAttention(group, num_blocks, block_size, dtype) for group in groups]
        # By layer: its group's index, and its cache.
        self.of_layer: dict[int, tuple[int, Cache]] = {
            layer: (index, cache)
            for index, (attention, layers) in enumerate(zip(self._groups, groups.values(), strict=True))
            for layer, cache in zip(layers, attention.cache, strict=True)
        }
        num_slots = num_slots_for(num_blocks * block_size) if rules else 0
        self.of_recurrent = CpuStates(rules, num_slots)
        self.states = StatePool(num_slots, self.of_recurrent.copy)

    def copy_blocks(self, sources: list[int], destinations: list[int]) -> None:
        for group in self._groups:
            group.copy_blocks(sources, destinations)

    def plan(self, spans: list[TokenSpan]) -> ModulesPlan:
        plans = [group.plan(spans) for group in self._groups]
        states = plan_states(spans) if self.states.num_slots else None
        return ModulesPlan(plans[0].positions, [unrotated(plan) for plan in plans], states)


class _Step:
    """Attention and recurrent layers of one forward pass."""

    def __init__(
        self, scores: dict[int, tuple[HeadRotation, Scoring]], cache: ModulesCache, plan: ModulesPlan, part_at: int
    ) -> None:
        """`part_at`: see `attend_by`."""
        self._scores, self._cache, self._plan, self._part_at = scores, cache, plan, part_at

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        group, cache = self._cache.of_layer[layer]
        return attend_rotated(query, key, value, self._part_at, self._plan.groups[group], *self._scores[layer], cache)

    def recur(self, layer: int, rule: Rule, *inputs: torch.Tensor) -> torch.Tensor:
        assert self._plan.states is not None
        return self._cache.of_recurrent.run(layer, inputs, self._plan.states)


def attend_rotated(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, part_at: int, plan: AttentionPlan,
    rotation: HeadRotation, scoring: Scoring, cache: Cache,
) -> torch.Tensor:  # fmt: skip
    """Attends as `AttentionStep.attend`. part_at: see `attend_by`; rotation, scoring: of `scores_of`; plan: see `unrotated`."""
    qkv = bits_of(torch.cat([each.transpose(0, 1) for each in (query, key, value)], 1).flatten(1))
    return tensor_of(attend_by(part_at, qkv, plan, rotation, scoring, 0.0, cache))


def unrotated(plan: AttentionPlan) -> AttentionPlan:
    """Returns the plan for queries and keys that are already rotated: all rows use the only row of an identity rotation."""
    return plan._replace(positions=np.zeros_like(plan.positions))


def scores_of(form: LayerForm) -> tuple[HeadRotation, Scoring]:
    sinks = NO_SINKS if form.sinks is None else form.sinks.detach().float().numpy()
    still = np.ones((1, form.head_dim), np.float32), np.zeros((1, form.head_dim), np.float32)
    rotation = HeadRotation(*still, NO_SINKS, NO_SINKS, np.array([form.scale], np.float32))
    return rotation, Scoring(form.window, float(form.cap), sinks)


class CpuModules:
    def __init__(
        self, config: TextConfig, tensors: Tensors, dtype: torch.dtype, quantization: str, max_model_len: int,
        batch_invariant: bool = True, cache_dtype: np.dtype[Any] | None = None,
    ) -> None:  # fmt: skip
        """Takes the tensors out of `tensors`. Raises ConfigError if the engine can't run the model.

        `cache_dtype`: one of CACHE_DTYPES, None for the model's.
        """
        self.config = config
        self.max_model_len = max_model_len
        self._dtype = np.dtype(ELEMENTS[dtype])
        self._cache_dtype = cache_dtype or self._dtype
        make = partial(make_cpu_linear, quantization=quantization, batch_invariant=batch_invariant)
        products: list[CpuLinear] = []

        def make_and_note(weight: Weight, bias: torch.Tensor | None, is_looked_up: bool) -> CpuMatrix:
            matrix = make_matrix(weight, bias, is_looked_up, make, dtype)
            products.append(matrix.linear)
            return matrix

        self._model = build_modules(config, tensors, dtype, make_and_note)
        self.quantization = formats_of(products)
        self.head = Head(self._model.get_output_embeddings().weight.matrix.linear, None, config.vocab_size)
        with Recorder() as recorder:
            self._forms, self._rules = probe(self._model, torch.device("cpu"))
        # Of one row's elementwise results.
        self.widths = sorted(recorder.sizes)
        self._functions = recorder.functions
        self._scores = {layer: scores_of(form) for layer, form in self._forms.items()}
        # The kernel of `attend_by` for the kind of cache that all layers have.
        _, cache = next(iter(self.make_cache(1, 8).of_layer.values()))
        self._part_at = part_address(self._dtype, cache)

    @property
    def is_quantized(self) -> bool:
        return isinstance(self.head.linear, QuantizedLinear)

    def block_bytes(self, block_size: int) -> int:
        """Returns the bytes of a block of the cache."""
        return sum(
            make_layout(group, group.num_layers, block_size, self._cache_dtype).block_bytes
            for group in grouped(self._forms)
        )

    @property
    def slot_bytes(self) -> int:
        """Returns the bytes of a sequence's recurrent state; 0 if there is none."""
        return slot_bytes(self._rules)

    def make_cache(self, num_blocks: int, block_size: int) -> ModulesCache:
        return ModulesCache(self._forms, self._rules, num_blocks, block_size, self._cache_dtype)

    def logits_bytes(self, num_rows: int) -> int:
        """Returns the bytes of a forward pass's logits: what the head returns, and what the module makes of it."""
        return 2 * num_rows * self.config.vocab_size * self._dtype.itemsize

    def padded(self, num_rows: int) -> int:
        """Each product pads its own rows."""
        return num_rows

    def forward(self, batch: Batch, attention: ModulesCache, plan: ModulesPlan) -> torch.Tensor:
        """Returns the wanted tokens' logits: [num_wanted, vocab_size]."""
        tokens, positions, wanted = map(torch.from_numpy, (batch.tokens, plan.positions, batch.wanted))
        step = _Step(self._scores, attention, plan, self._part_at)
        with WholeVectors(self._functions) if self._functions else nullcontext():
            return run(self._model, tokens, positions, wanted, step)

    def forward_with_states(
        self, batch: Batch, attention: ModulesCache, plan: ModulesPlan, after: Sequence[int]
    ) -> tuple[torch.Tensor, list[Array]]:
        """Returns also all tokens' hidden states after some of the layers (see `HeadTarget`)."""
        with recorded_states(self._model, after) as states:
            rows = self.forward(batch, attention, plan)
        return rows, [bits_of(state[0]) for state in states]

    def embed(self, tokens: Array) -> Array:
        """tokens: [num_tokens] -> [num_tokens, hidden_size]."""
        rows: torch.Tensor = self._model.get_input_embeddings()(torch.from_numpy(tokens))
        return bits_of(rows)

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        return rows.float()
