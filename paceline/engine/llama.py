"""The decoder forward over a flat batch of rows, with fused QKV and gate-up projections.

Covers Llama, Mistral, Qwen2 (QKV bias) and Qwen3 (norms on queries and keys).
"""

from collections.abc import Callable
from functools import partial

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from paceline.engine.attention import AttentionPlan, HeadRotation, PagedAttention
from paceline.engine.batch import Batch
from paceline.engine.config import ModelConfig
from paceline.engine.head import Head
from paceline.engine.kernels.rows import rms_norm, silu_gate
from paceline.engine.kernels.scalars import Array, bits_of, pad_rows
from paceline.engine.linear import Linear, make_linear
from paceline.errors import ConfigError

Tensors = dict[str, torch.Tensor]
MakeLinear = Callable[[torch.Tensor, torch.Tensor | None], Linear]


class Layer:
    """One decoder layer's weights."""

    def __init__(
        self, tensors: Tensors, prefix: str, config: ModelConfig, make: MakeLinear, rope: tuple[Array, Array]
    ) -> None:
        def linear(*names: str) -> Linear:
            weight = torch.cat([tensors.pop(f"{prefix}{name}.weight") for name in names])
            biases = [tensors.pop(f"{prefix}{name}.bias", None) for name in names]
            bias = torch.cat([b for b in biases if b is not None]) if biases[0] is not None else None
            return make(weight, bias)

        def norm(name: str) -> Array:  # [hidden_size] float32
            return tensors.pop(f"{prefix}{name}.weight").float().numpy()

        def head_norm(name: str) -> Array:  # Qwen3 only: [head_dim], else [0]
            return tensors.pop(f"{prefix}{name}.weight", torch.empty(0)).float().numpy()

        self.attention_norm = norm("input_layernorm")
        self.qkv = linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output = linear("self_attn.o_proj")
        self.mlp_norm = norm("post_attention_layernorm")
        self.gate_up = linear("mlp.gate_proj", "mlp.up_proj")
        self.down = linear("mlp.down_proj")
        query_norm, key_norm = head_norm("self_attn.q_norm"), head_norm("self_attn.k_norm")
        self.rotation = HeadRotation(*rope, query_norm, key_norm, config.norm_eps)


class Llama:
    """Embedding, decoder layers, head."""

    def __init__(
        self, config: ModelConfig, tensors: Tensors, quantization: str, max_model_len: int, same_bits: bool = True
    ) -> None:
        """Takes the tensors out of `tensors`; `same_bits`: see EngineConfig. Raises ConfigError if one is missing or has another shape."""
        self.config = config
        self.max_model_len = max_model_len
        _check_shapes(config, tensors)
        embedding = tensors["model.embed_tokens.weight"]
        self._embedding = bits_of(embedding)  # [vocab_size, hidden_size]
        head = embedding if config.tied_embeddings else tensors.pop("lm_head.weight")
        make = partial(make_linear, quantization=quantization, same_bits=same_bits)
        rope = _rope_tables(config, max_model_len)
        self.layers = [Layer(tensors, f"model.layers.{i}.", config, make, rope) for i in range(config.num_layers)]
        self._norm = tensors.pop("model.norm.weight").float().numpy()  # [hidden_size]
        # A draft's own: the tokens its head knows.
        ids = tensors.pop("head_ids", None)  # [head_size]
        known = None if ids is None else ids.numpy()
        self.head = Head(make(head if ids is None else head[ids], None), known, config.vocab_size)
        self.embedding_dtype = embedding.dtype

    def padded(self, num_rows: int) -> int:
        """How many rows to run for so many (see `linear`)."""
        layer = self.layers[0]
        return max(linear.padded(num_rows) for linear in (layer.qkv, layer.output, layer.gate_up, layer.down))

    def forward(self, batch: Batch, attention: PagedAttention, plan: AttentionPlan) -> torch.Tensor:
        """Feeds the batch's rows into the cache; returns the wanted rows' logits: [num_wanted, head_size] float32."""
        x = self._embedding[batch.tokens]  # [num_rows, hidden_size]
        for index in range(len(self.layers)):
            x = self.run_layer(index, x, attention, plan)
        return self.run_head(x[batch.wanted])

    def run_layer(self, index: int, x: Array, attention: PagedAttention, plan: AttentionPlan) -> Array:
        """One layer over x: [num_rows, hidden_size]."""
        layer, eps = self.layers[index], self.config.norm_eps
        qkv = layer.qkv(rms_norm(x, layer.attention_norm, eps))  # [num_rows, (heads + 2 * kv_heads) * head_dim]
        x = layer.output(attention.forward(index, qkv, plan, layer.rotation), residual=x)
        gate_up = layer.gate_up(rms_norm(x, layer.mlp_norm, eps))  # [num_rows, 2 * intermediate_size]
        return layer.down(silu_gate(gate_up), residual=x)

    def run_head(self, x: Array) -> torch.Tensor:
        """Logits of x: [num_wanted, hidden_size], computed with the head's own padding."""
        num_wanted = x.shape[0]
        if num_wanted == 0:
            return torch.empty((0, 0))
        x = pad_rows(x, self.head.padded(num_wanted))
        return self.head(rms_norm(x, self._norm, self.config.norm_eps))[:num_wanted]


def _rope_tables(config: ModelConfig, max_len: int) -> tuple[Array, Array]:
    """Cosines and signed sines: each [max_len, head_dim] float32. Frequencies are transformers' own."""
    parameters = config.source.rope_parameters
    kind = parameters["rope_type"]
    if kind == "default":
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
        frequencies, factor = 1.0 / parameters["rope_theta"] ** exponents, 1.0
    elif kind in ("llama3", "linear", "yarn"):
        frequencies, factor = ROPE_INIT_FUNCTIONS[kind](config.source, torch.device("cpu"))
    else:
        raise ConfigError(f"rope_type {kind!r} is not supported; supported: default, llama3, linear, yarn")
    angles = torch.arange(max_len, dtype=torch.float32)[:, None] * frequencies  # [max_len, head_dim / 2]
    cos, sin = angles.cos() * factor, angles.sin() * factor
    return torch.cat((cos, cos), 1).numpy(), torch.cat((-sin, sin), 1).numpy()


def _check_shapes(config: ModelConfig, tensors: Tensors) -> None:
    """Raises ConfigError, naming the tensor, where the weights are not what the config says."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    expected = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tied_embeddings:
        expected["lm_head.weight"] = (config.vocab_size, hidden)
    for i in range(config.num_layers):
        expected |= {
            f"model.layers.{i}.{name}.weight": shape
            for name, shape in {
                "input_layernorm": (hidden,), "post_attention_layernorm": (hidden,),
                "self_attn.q_proj": (query, hidden), "self_attn.k_proj": (key, hidden),
                "self_attn.v_proj": (key, hidden), "self_attn.o_proj": (hidden, query),
                "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden), "mlp.down_proj": (hidden, inner),
            }.items()
        }  # fmt: skip
    if extra := next((name for name in tensors if name.startswith(f"model.layers.{config.num_layers}.")), None):
        raise ConfigError(
            f"the weights do not match the config: {extra} is there, the config says {config.num_layers} layers"
        )
    for name, shape in expected.items():
        if name not in tensors:
            raise ConfigError(f"the weights do not match the config: {name} is missing")
        if tuple(tensors[name].shape) != shape:
            found = tuple(tensors[name].shape)
            raise ConfigError(f"the weights do not match the config: {name} has shape {found}, the config says {shape}")
