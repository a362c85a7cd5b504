"""The decoder forward pass on a GPU, over a flat batch, for the same models as `cpu.llama`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch.nn import functional

from paceline.engine.arrays import Array
from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.paged_attention import CudaPagedAttention, Scoring, require_head_dim
from paceline.engine.cuda.products import CudaLinear, make_cuda_linear
from paceline.engine.cuda.row_kernels import Rotation, activate, add_and_norm, rotate_and_place
from paceline.engine.models.architectures import LayerSpec
from paceline.engine.models.model_config import UNKNOWN_LOGIT, ModelConfig, TextConfig
from paceline.engine.models.rope import query_growth, rope_tables, rotary_order
from paceline.engine.models.shapes import HEAD_IDS, Tensors, check_shapes, fused, with_masks


@dataclass(frozen=True, slots=True)
class Ropes:
    """What the layers' rotations read (see `cpu.llama`)."""

    # By LayerSpec.rope: cosines and sines, each [max_model_len, head_dim] float32.
    tables: dict[str | None, tuple[torch.Tensor, torch.Tensor]]
    query_growth: torch.Tensor | None  # [max_model_len] float32

    @classmethod
    def of(cls, config: ModelConfig, max_len: int, device: torch.device) -> "Ropes":
        tables = {}
        for rope in {spec.rope for spec in config.layers}:
            cos, sin = rope_tables(config, max_len, rope)
            tables[rope] = cos.to(device), sin.to(device)
        return cls(tables, query_growth(config, max_len).to(device) if config.scales.growth else None)


class CudaLayer:
    def __init__(
        self,
        tensors: Tensors,
        prefix: str,
        config: ModelConfig,
        make: partial[CudaLinear],
        ropes: Ropes,
        spec: LayerSpec,
    ) -> None:
        architecture, self._config = config.architecture, config
        cos, sin = ropes.tables[spec.rope]

        def linear(*names: str, order: Array | None = None) -> CudaLinear:
            return make(*fused(tensors, prefix, *names, order=order))

        def norm(name: str | None) -> torch.Tensor | None:  # float32
            weight = tensors.pop(f"{prefix}{name}.weight", None)
            return None if weight is None else (weight.float() + architecture.norm_offset).to(cos.device)

        norms = architecture.norms
        self.attention_norm, self.output_norm = norm(norms.attention), norm(norms.output)
        self.qkv = linear(*architecture.qkv, order=rotary_order(config))
        self.output = linear("self_attn.o_proj")
        self.mlp_norm, self.down_norm = norm(norms.mlp), norm(norms.down)
        self.gate_up = linear(*architecture.gate_up)
        self.down = linear("mlp.down_proj")
        head_norms = norm("self_attn.q_norm"), norm("self_attn.k_norm")
        self.rotation = Rotation(cos, sin, *head_norms, config.norm_eps, ropes.query_growth)
        self.scoring = Scoring(config.score_scale, config.scales.score_cap, spec.window)

    @property
    def products(self) -> tuple[CudaLinear, ...]:
        return self.qkv, self.output, self.gate_up, self.down

    def run(
        self, x: torch.Tensor, row: torch.Tensor, index: int, plan: ForwardPlan, attention: CudaPagedAttention
    ) -> torch.Tensor:
        """Adds attention to x. Returns what the caller is to add, with `down_norm`: [num_rows, hidden_size].

        x: [num_rows, hidden_size]; row: what queries, keys and values are products of, [num_rows, in_features]; index: of
        the layer in `attention`.
        """
        return self.add_attended(x, self.attend(row, index, plan, attention))

    def attend(self, row: torch.Tensor, index: int, plan: ForwardPlan, attention: CudaPagedAttention) -> torch.Tensor:
        """Writes the rows' keys and values, and returns what they attend to: [num_rows, heads, head_dim]."""
        qkv = self.qkv(row).view(len(row), -1, self._config.head_dim)
        keys, values = attention.keys[index], attention.values[index]
        queries = rotate_and_place(qkv, plan.positions, plan.slots, self.rotation, keys, values)
        return attention.attend(index, queries, plan, self.scoring)

    def add_attended(self, x: torch.Tensor, mixed: torch.Tensor) -> torch.Tensor:
        """Computes what follows attention, as `run`. mixed: [num_rows, heads, head_dim]."""
        config, scale = self._config, float(self._config.scales.residual)
        added = self.output(mixed.view(len(x), -1))
        gate_up = self.gate_up(add_and_norm(x, added, self.mlp_norm, config.norm_eps, self.output_norm, scale))
        return self.down(activate(gate_up, config.activation))


# What a draft head reads of a forward pass. By a number of layers, 0 for the embedding: all rows after them, [num_rows,
# hidden_size].
States = Mapping[int, torch.Tensor]
NO_STATES: States = {}


class CudaModel(Protocol):
    """A model on a GPU: our layers, or transformers' modules."""

    @property
    def config(self) -> TextConfig: ...

    max_model_len: int
    # Whether its forward pass can be captured in a graph.
    has_graphs: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of weights that products read."""
        ...

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention: ...

    def forward(
        self, plan: ForwardPlan, attention: CudaPagedAttention, out: torch.Tensor, states: States = NO_STATES
    ) -> torch.Tensor:
        """Writes the plan's tokens to the cache, the wanted logits to out: [num_wanted, vocab_size] float32, and `states`."""
        ...

    def new_logits(self, num_rows: int) -> torch.Tensor:
        """Returns an uninitialized [num_rows, vocab_size] float32 for `forward`."""
        ...

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [num_rows] -> [num_rows, hidden_size]."""
        ...


def place_logits(logits: torch.Tensor, ids: torch.Tensor | None, out: torch.Tensor) -> torch.Tensor:
    """Writes logits, [num_rows, head_size], to out, [num_rows, vocab_size] float32. ids: [head_size] int64; None: all."""
    if ids is None:
        return out.copy_(logits)
    return out.fill_(UNKNOWN_LOGIT).index_copy_(1, ids, logits.float())


class CudaLlama:
    has_graphs = True

    def __init__(
        self, config: ModelConfig, tensors: Tensors, quantization: str, max_model_len: int, batch_invariant: bool,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Moves the tensors to the GPU one by one. Raises ConfigError if one is missing or has a wrong shape."""
        require_head_dim(config.head_dim)
        self.config = config
        self.max_model_len = max_model_len
        check_shapes(config, tensors)
        make = partial(make_cuda_linear, quantization=quantization, batch_invariant=batch_invariant, device=device)
        ropes = Ropes.of(config, max_model_len, device)
        embedding = tensors["model.embed_tokens.weight"]
        # [vocab_size + num_masks, hidden_size]
        self._embedding = with_masks(embedding, tensors).to(device)
        head = embedding if config.tied_embeddings else tensors.pop("lm_head.weight")
        ids = tensors.pop(HEAD_IDS, None)  # [head_size], only in distilled drafts
        self._head_ids = None if ids is None else ids.long().to(device)
        shared = self._embedding[: config.vocab_size] if config.tied_embeddings else head
        self._head = make(shared if ids is None else head[ids.long()], None)
        self.layers = [
            CudaLayer(tensors, f"model.layers.{i}.", config, make, ropes, spec) for i, spec in enumerate(config.layers)
        ]
        norm = tensors.pop("model.norm.weight").float() + config.architecture.norm_offset
        self._last_norm = norm.to(device)  # [hidden_size]
        # The head is linear, so the logits' factor can be the norm's.
        self._norm = (norm * config.scales.logit).to(device)
        # In the model's dtype, as transformers multiplies.
        self._embedding_scale = torch.tensor(config.scales.embedding, dtype=embedding.dtype).item()

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self._products)

    @property
    def _products(self) -> list[CudaLinear]:
        return [*(each for layer in self.layers for each in layer.products), self._head]

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention:
        shape, like = self.config, self._embedding
        return CudaPagedAttention(
            shape.num_layers, num_blocks, block_size, shape.num_kv_heads, shape.head_dim, like.dtype, like.device
        )

    def forward(
        self, plan: ForwardPlan, attention: CudaPagedAttention, out: torch.Tensor, states: States = NO_STATES
    ) -> torch.Tensor:
        """Writes the plan's tokens to the cache, the wanted logits to out: [num_wanted, vocab_size] float32, and `states`."""
        eps, scale = self.config.norm_eps, float(self.config.scales.residual)
        x = self.embed(plan.tokens)
        added, added_norm = None, None
        for index, layer in enumerate(self.layers):
            row = add_and_norm(x, added, layer.attention_norm, eps, added_norm, scale)
            if index in states:
                states[index].copy_(x)
            added, added_norm = layer.run(x, row, index, plan, attention), layer.down_norm
        assert added is not None, "a model has layers"
        if (last := states.get(len(self.layers))) is not None:
            add_and_norm(last.copy_(x), added, None, eps, added_norm, scale)
        wanted = plan.wanted
        logits = self._head(add_and_norm(x[wanted], added[wanted], self._norm, eps, added_norm, scale))
        return place_logits(self._capped(logits), self._head_ids, out)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [num_rows] -> [num_rows, hidden_size]."""
        x = functional.embedding(tokens, self._embedding)
        return x if self._embedding_scale == 1 else x.mul_(self._embedding_scale)

    def normed(self, x: torch.Tensor) -> torch.Tensor:
        """Returns rows as the head's matrix reads them, but for the logits' factor. x: [num_rows, hidden_size]."""
        return add_and_norm(x, None, self._last_norm, self.config.norm_eps)

    def project(self, normed: torch.Tensor) -> torch.Tensor:
        """normed: [num_rows, hidden_size] -> [num_rows, vocab_size] float32."""
        logits = self._capped(self._head(normed).float() * self.config.scales.logit)
        return place_logits(logits, self._head_ids, self.new_logits(len(normed)))

    def _capped(self, logits: torch.Tensor) -> torch.Tensor:
        cap = self.config.scales.logit_cap
        return cap * torch.tanh(logits.float() / cap) if cap else logits

    def new_logits(self, num_rows: int) -> torch.Tensor:
        """Returns an uninitialized [num_rows, vocab_size] float32 for `forward`."""
        return torch.empty((num_rows, self.config.vocab_size), device=self._embedding.device)
