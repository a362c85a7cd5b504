"""The decoder forward pass on a CPU, over a flat batch, with fused QKV and gate-up projections.

`models.architectures` says which parts a layer has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch
from paceline.engine.cpu.head import DenseRows, Embedding, EmbeddingRows, Head
from paceline.engine.cpu.kernels.attention import AttentionPlan, HeadRotation, Scoring, attend_by, part_address
from paceline.engine.cpu.kernels.cache import Cache
from paceline.engine.cpu.kernels.decoder import LayerArrays, kinds_of, run_layers, table_of, with_kernel
from paceline.engine.cpu.kernels.rows import Activation, activate, add_scaled, cap_rows, rms_norm
from paceline.engine.cpu.kernels.scalars import ELEMENTS, bits_of, pad_rows
from paceline.engine.cpu.linear import (
    BFLOAT16_LINEARS,
    CpuLinear,
    KernelLinear,
    QuantizedLinear,
    has_own_kernel,
    make_cpu_linear,
)
from paceline.engine.cpu.narrow_head import MadeRows, NarrowHead, QuantizedRows
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.models.architectures import LayerSpec
from paceline.engine.models.gguf.tensors import FileTensor
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.quantization import formats_of
from paceline.engine.models.rope import query_growth, rope_tables, rotary_order
from paceline.engine.models.shapes import (
    HEAD_IDS,
    MASK_VECTORS,
    Tensors,
    Weight,
    as_tensor,
    check_shapes,
    fused,
    layout_of,
)

MakeLinear = Callable[[Weight, torch.Tensor | None], CpuLinear]


def _take_norm(tensors: Tensors, name: str, config: ModelConfig) -> Array:
    """Takes a norm's weights: [width] float32."""
    return (as_tensor(tensors.pop(name), torch.float32) + config.architecture.norm_offset).numpy()


@dataclass(frozen=True, slots=True)
class Ropes:
    """What the layers' rotations read, for each position up to the model's longest."""

    # By LayerSpec.rope: cosines and sines, each [max_model_len, head_dim] float32.
    tables: dict[str | None, tuple[Array, Array]]
    query_scales: Array  # [max_model_len] float32

    @classmethod
    def of(cls, config: ModelConfig, max_len: int) -> "Ropes":
        tables = {}
        for rope in {spec.rope for spec in config.layers}:
            cos, sin = rope_tables(config, max_len, rope)
            tables[rope] = cos.numpy(), sin.numpy()
        return cls(tables, np.float32(config.score_scale) * query_growth(config, max_len).numpy())


class CpuLayer:
    def __init__(
        self, tensors: Tensors, prefix: str, config: ModelConfig, make: MakeLinear, ropes: Ropes, spec: LayerSpec
    ) -> None:
        architecture = config.architecture
        layouts = []

        def linear(*names: str, order: Array | None = None) -> CpuLinear:
            weight, bias = fused(tensors, prefix, *names, order=order)
            layouts.append((layout_of(weight), bias is not None))
            return make(weight, bias)

        def norm(name: str | None) -> Array:  # [0] if the model has none
            name = f"{prefix}{name}.weight"
            return _take_norm(tensors, name, config) if name in tensors else np.empty(0, np.float32)

        norms = architecture.norms
        self.attention_norm, self.output_norm = norm(norms.attention), norm(norms.output)
        self.qkv = linear(*architecture.qkv, order=rotary_order(config))
        self.output = linear("self_attn.o_proj")
        self.mlp_norm, self.down_norm = norm(norms.mlp), norm(norms.down)
        self.gate_up = linear(*architecture.gate_up)
        self.down = linear("mlp.down_proj")
        cos, sin = ropes.tables[spec.rope]
        self.rotation = HeadRotation(cos, sin, norm("self_attn.q_norm"), norm("self_attn.k_norm"), ropes.query_scales)
        self.scoring = Scoring(spec.window, config.scales.score_cap)
        self.activation = Activation(*config.activation)
        self.residual_scale = float(config.scales.residual)
        # Layers of one kind compute the same with other numbers.
        self.kind = spec, *layouts

    @property
    def products(self) -> tuple[CpuLinear, ...]:
        return self.qkv, self.output, self.gate_up, self.down

    def run(self, x: Array, row: Array, plan: AttentionPlan, cache: Cache, part_at: int, eps: float) -> Array:
        """Computes as `kernels.decoder` does, with the library's products.

        x: [num_rows, hidden_size]; row: what queries, keys and values are products of, [num_rows, in_features];
        part_at: see `attend_by`.
        """
        qkv = self.qkv(row)  # [num_rows, (heads + 2 * kv_heads) * head_dim]
        return self.add_attended(x, attend_by(part_at, qkv, plan, self.rotation, self.scoring, eps, cache), eps)

    def add_attended(self, x: Array, mixed: Array, eps: float) -> Array:
        """Computes what follows attention. mixed: [num_rows, heads * head_dim]."""
        x = self._add_product(x, mixed, self.output, self.output_norm, eps)
        gate_up = self.gate_up(rms_norm(x, self.mlp_norm, eps))  # [num_rows, 2 * intermediate_size]
        return self._add_product(x, activate(gate_up, self.activation), self.down, self.down_norm, eps)

    def _add_product(self, x: Array, row: Array, linear: CpuLinear, norm: Array, eps: float) -> Array:
        if norm.size == 0 and self.residual_scale == 1:
            return linear(row, residual=x)
        return add_scaled(x, linear(row), norm, eps, self.residual_scale)

    def arrays(self, dtype: np.dtype[Any], cache: Cache) -> LayerArrays | None:
        """Arguments for `kernels.decoder`; None if this layer uses a library's products."""
        known = [each for each in self.products if isinstance(each, KernelLinear) and each.has_whole_tiles]
        if len(known) < len(self.products):
            return None
        weights = [each.weights(dtype) for each in known]
        qkv, output, gate_up, down = map(with_kernel, weights)
        part_at = part_address(dtype, cache)
        return LayerArrays(
            self.attention_norm, qkv, self.rotation, self.scoring, cache, output, self.output_norm,
            self.mlp_norm, gate_up, self.activation, down, self.down_norm, self.residual_scale, part_at,
        )  # fmt: skip


def _make_head(
    head: torch.Tensor | FileTensor, ids: Any, make: MakeLinear, config: ModelConfig, num_first: int
) -> tuple[Head, CpuLinear | None]:
    """Returns also the linear with all of the head's weights, if there is one.

    `ids`: [head_size], the tokens that the head knows; None for all. `num_first`: see `narrow_head`; 0 for all.
    """
    vocab_size = config.vocab_size
    if ids is not None:
        known = head if isinstance(head, torch.Tensor) else as_tensor(head, torch.bfloat16)
        return Head(make(known[ids], None), ids.numpy(), vocab_size), None
    if num_first and isinstance(head, torch.Tensor):
        first = make(head[:num_first], None)
        if has_own_kernel(first):
            return NarrowHead(first, num_first, MadeRows(head, lambda rows: make(rows, None)), vocab_size), None
    linear = make((head,) if isinstance(head, FileTensor) else head, None)
    if num_first and isinstance(linear, QuantizedLinear):
        rows = QuantizedRows(linear, vocab_size)
        return NarrowHead(linear.first(num_first), num_first, rows, vocab_size), linear
    return Head(linear, None, vocab_size), linear


def _rows_of(embedding: torch.Tensor | FileTensor, head: CpuLinear | None, make: MakeLinear) -> EmbeddingRows:
    if isinstance(embedding, FileTensor):
        linear = head if head is not None else make((embedding,), None)
        assert isinstance(linear, QuantizedLinear), "a matrix alone begins at a tile"
        return linear
    if isinstance(head, BFLOAT16_LINEARS):
        return head
    return DenseRows(bits_of(embedding))


class CpuLlama:
    def __init__(
        self, config: ModelConfig, tensors: Tensors, quantization: str, max_model_len: int, batch_invariant: bool = True,
        cache_dtype: np.dtype[Any] | None = None, draft_vocab_size: int = 0,
    ) -> None:  # fmt: skip
        """Takes the tensors out of `tensors`. Raises ConfigError if one is missing or has a wrong shape.

        `cache_dtype`: one of CACHE_DTYPES, None for the model's.
        `draft_vocab_size`: the first ids that a draft's head knows (see `narrow_head`), 0 for all.
        """
        self.config = config
        self.max_model_len = max_model_len
        check_shapes(config, tensors)
        embedding = tensors.pop("model.embed_tokens.weight")
        self.dtype = torch.bfloat16 if isinstance(embedding, FileTensor) else embedding.dtype
        head = embedding if config.tied_embeddings else tensors.pop("lm_head.weight")
        make = partial(make_cpu_linear, quantization=quantization, batch_invariant=batch_invariant)
        ropes = Ropes.of(config, max_model_len)
        self.layers = [
            CpuLayer(tensors, f"model.layers.{i}.", config, make, ropes, spec) for i, spec in enumerate(config.layers)
        ]
        products = [each for layer in self.layers for each in layer.products]
        # One of each class, which says how rows are padded.
        self._products = list({type(each): each for each in products}.values())
        self._last_norm = _take_norm(tensors, "model.norm.weight", config)  # [hidden_size]
        # The head is linear, so the logits' factor can be the norm's.
        self._norm = self._last_norm * np.float32(config.scales.logit)
        # Only distilled drafts have this: the ids of the tokens that the head knows.
        ids = tensors.pop(HEAD_IDS, None)  # [head_size]
        self.head, head_linear = _make_head(head, ids, make, config, draft_vocab_size)
        self.quantization = formats_of([*products, self.head.linear])
        masks = tensors.pop(MASK_VECTORS, None)
        of_masks = None if masks is None else bits_of(as_tensor(masks, self.dtype))
        rows = _rows_of(embedding, head_linear if config.tied_embeddings else None, make)
        dtype = np.dtype(ELEMENTS[self.dtype])
        self._embedding = Embedding(rows, of_masks, config.vocab_size, dtype, config.scales.embedding)
        self._cache_dtype = cache_dtype or self._embedding.dtype
        # For the caches that were used last: the arguments of `kernels.decoder`, and the kernel of `attend_by`.
        self._decoder_of: CpuPagedAttention | None = None
        self._decoder_arguments: tuple[LayerArrays, Array] | None = None
        self._part_at = 0

    @property
    def is_quantized(self) -> bool:
        return any(isinstance(linear, QuantizedLinear) for linear in (*self._products, self.head.linear))

    def make_cache(self, num_blocks: int, block_size: int, num_layers: int | None = None) -> CpuPagedAttention:
        return CpuPagedAttention(self.config, num_blocks, block_size, self._cache_dtype, num_layers)

    def padded(self, num_rows: int) -> int:
        """Returns how many rows to run: all products of all layers take this many without more padding."""
        while (more := max(linear.padded(num_rows) for linear in self._products)) > num_rows:
            num_rows = more
        return num_rows

    def forward(self, batch: Batch, attention: CpuPagedAttention, plan: AttentionPlan) -> Array:
        """Returns the wanted tokens' rows: [num_wanted, hidden_size]."""
        return self.run_layers(self._embedding(batch.tokens), attention, plan)[batch.wanted]

    def forward_with_states(
        self, batch: Batch, attention: CpuPagedAttention, plan: AttentionPlan, after: Sequence[int]
    ) -> tuple[Array, list[Array]]:
        """Returns also all tokens' hidden states after some of the layers, in order.

        after: numbers of layers, increasing; [num_tokens, hidden_size] each.
        """
        x, states, first = self._embedding(batch.tokens), [], 0
        for end in after:
            x, first = self.run_layers(x, attention, plan, part=slice(first, end)), end
            states.append(x)
        return self.run_layers(x, attention, plan, part=slice(first, None))[batch.wanted], states

    def run_layers(
        self, x: Array, attention: CpuPagedAttention, plan: AttentionPlan, first: int = 0, part: slice = slice(None)
    ) -> Array:
        """Runs a part of the layers from `first` on that `attention` has a cache for. x: [num_rows, hidden_size]."""
        eps = self.config.norm_eps
        if (decoder := self._decoder(attention, x.dtype, first)) is not None:
            arrays, table = decoder
            return run_layers(x, arrays, table[part], plan, eps)
        pairs = zip(self.layers[first:], attention.cache, strict=False)
        for layer, cache in list(pairs)[part]:
            x = layer.run(x, rms_norm(x, layer.attention_norm, eps), plan, cache, self._part_at, eps)
        return x

    def embed(self, tokens: Array) -> Array:
        """tokens: [num_tokens] -> [num_tokens, hidden_size]."""
        return self._embedding(tokens)

    def _decoder(
        self, attention: CpuPagedAttention, dtype: np.dtype[Any], first: int = 0
    ) -> tuple[LayerArrays, Array] | None:
        if self._decoder_of is not attention:
            pairs = zip(self.layers[first:], attention.cache, strict=False)
            arrays = [layer.arrays(dtype, cache) for layer, cache in pairs]
            known = [each for each in arrays if each is not None]
            is_uniform = len(known) == len(arrays) and len({kinds_of(each) for each in known}) == 1
            self._decoder_arguments = (known[0], table_of(known)) if is_uniform else None
            self._part_at = part_address(dtype, attention.cache[0])
            self._decoder_of = attention
        return self._decoder_arguments

    def logits(self, x: Array) -> torch.Tensor:
        """x: [num_wanted, hidden_size] -> [num_wanted, head_size] float32."""
        num_wanted = x.shape[0]
        if num_wanted == 0:
            return torch.empty((0, 0))
        x = pad_rows(x, self.head.padded(num_wanted))
        return self._capped(self.head(rms_norm(x, self._norm, self.config.norm_eps))[:num_wanted])

    def normed(self, x: Array) -> Array:
        """Returns rows as the head's matrix reads them, but for the logits' factor. x: [num_rows, hidden_size]."""
        return rms_norm(x, self._last_norm, self.config.norm_eps)

    def project(self, normed: Array) -> torch.Tensor:
        """normed: [num_rows, hidden_size] -> [num_rows, head_size] float32."""
        num_rows = len(normed)
        logits = self.head(pad_rows(normed, self.head.padded(num_rows)))[:num_rows]
        return self._capped(logits * self.config.scales.logit)

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        if cap := self.config.scales.logit_cap:
            cap_rows(logits.numpy(), cap)
        return logits
