"""The supported architectures: what a model type has that its config does not say.

To add one, add an entry to ARCHITECTURES; GGUF files need one in `gguf/architectures.py` too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from paceline.errors import ConfigError

# x * sigmoid(linear * x + cubic * x^3), by the activation's name. GELU's numbers are 2 sqrt(2 / pi), and 0.044715 of it.
ACTIVATIONS = {
    "silu": (1.0, 0.0),
    "swish": (1.0, 0.0),
    "gelu_pytorch_tanh": (1.5957691216057308, 0.07135481627260025),
}


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """How a layer's tokens attend."""

    # The number of tokens that a token sees, itself included; 0: all.
    window: int = 0
    # A key of `rope_parameters`, or "" if these are for all layers; None: the layer knows no positions.
    rope: str | None = ""


@dataclass(frozen=True, slots=True)
class Norms:
    """The names of a layer's norms; None if there is none."""

    attention: str | None = "input_layernorm"
    # Of what attention adds to a row.
    output: str | None = None
    mlp: str | None = "post_attention_layernorm"
    # Of what the MLP adds to a row.
    down: str | None = None

    @property
    def names(self) -> list[str]:
        return [name for name in (self.attention, self.output, self.mlp, self.down) if name is not None]


class HeadNorm(Enum):
    """How queries and keys are normed."""

    NONE = "not at all"
    EACH = "each head by itself, with the same weights"
    TOGETHER = "all heads of a row together"


@dataclass(frozen=True, slots=True)
class Scales:
    """Factors and caps of a forward pass. A cap turns x into cap * tanh(x / cap); 0: none."""

    # Factor of scores; None: head_dim^-0.5.
    score: float | None = None
    # Queries at positions from `growth_every` on have the factor 1 + growth * log(1 + position // growth_every).
    growth: float = 0.0
    growth_every: int = 1
    score_cap: float = 0.0
    embedding: float = 1.0
    # Of what attention and MLP add to a row.
    residual: float = 1.0
    logit: float = 1.0
    logit_cap: float = 0.0


def _all_alike(config: Any) -> tuple[LayerSpec, ...]:
    return (LayerSpec(),) * config.num_hidden_layers


def _by_type(config: Any) -> tuple[LayerSpec, ...]:
    """Reads windows and rotations from `layer_types`. Without it all layers have the window, if there is one."""
    count = config.num_hidden_layers
    window = getattr(config, "sliding_window", None) if getattr(config, "use_sliding_window", True) else None
    windows = {"full_attention": 0, "sliding_attention": window or 0}
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * count
    if unknown := next((kind for kind in kinds if kind not in windows), None):
        raise ConfigError(f"layer_types has {unknown!r}; supported: {', '.join(windows)}")
    rotates = getattr(config, "no_rope_layers", None) or [1] * count
    for name, values in (("layer_types", kinds), ("no_rope_layers", rotates)):
        if len(values) != count:
            raise ConfigError(f"{name} has {len(values)} entries; num_hidden_layers is {count}")
    # Parameters by type are dictionaries in the dictionary.
    is_by_type = "rope_type" not in config.rope_parameters
    return tuple(
        LayerSpec(windows[kind], (kind if is_by_type else "") if is_rotated else None)
        for kind, is_rotated in zip(kinds, rotates, strict=True)
    )


def _gemma(config: Any) -> Scales:
    if getattr(config, "use_bidirectional_attention", False):
        raise ConfigError("use_bidirectional_attention is True; it must be False: a token sees those before it")
    return Scales(
        score=config.query_pre_attn_scalar**-0.5,
        embedding=config.hidden_size**0.5,
        # Only Gemma 2 has caps.
        score_cap=(config.attn_logit_softcapping if config.model_type == "gemma2" else None) or 0.0,
        logit_cap=config.final_logit_softcapping or 0.0,
    )


def _granite(config: Any) -> Scales:
    return Scales(
        score=config.attention_multiplier,
        embedding=config.embedding_multiplier,
        residual=config.residual_multiplier,
        logit=1 / config.logits_scaling,
    )


def _ministral3(config: Any) -> Scales:
    parameters = config.rope_parameters
    if (growth := parameters.get("llama_4_scaling_beta")) is None:
        return Scales()
    return Scales(growth=growth, growth_every=parameters["original_max_position_embeddings"])


_QKV = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
_ATTENTION_BIASES = {"attention_bias": (*_QKV, "self_attn.o_proj")}
_ALL_BIASES = _ATTENTION_BIASES | {"mlp_bias": ("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj")}


@dataclass(frozen=True, slots=True)
class Architecture:
    norms: Norms = Norms()
    # Norm weights are stored less this.
    norm_offset: float = 0.0
    head_norm: HeadNorm = HeadNorm.NONE
    # The tensors that are queries, keys and values, and gate and up, one after the other.
    qkv: tuple[str, ...] = _QKV
    gate_up: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    # The projections with biases by the config's flag; by "": those that always have one. A GGUF file has no flags.
    biases: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Whether `partial_rotary_factor` may say that only a head's first features are rotated.
    rotates_partly: bool = False
    layers: Callable[[Any], tuple[LayerSpec, ...]] = _by_type
    scales: Callable[[Any], Scales] = lambda _: Scales()


_BEFORE_AND_AFTER = Norms(
    output="post_attention_layernorm", mlp="pre_feedforward_layernorm", down="post_feedforward_layernorm"
)
_AFTER = Norms(None, "post_attention_layernorm", None, "post_feedforward_layernorm")

# By `model_type` of transformers.
ARCHITECTURES = {
    "llama": Architecture(biases=_ALL_BIASES, layers=_all_alike),
    "mistral": Architecture(),
    "ministral": Architecture(),
    "ministral3": Architecture(scales=_ministral3),
    "qwen2": Architecture(biases={"": _QKV}),
    "qwen3": Architecture(head_norm=HeadNorm.EACH, biases=_ATTENTION_BIASES),
    "smollm3": Architecture(biases=_ALL_BIASES),
    "phi3": Architecture(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",), rotates_partly=True),
    "granite": Architecture(biases=_ALL_BIASES, layers=_all_alike, scales=_granite),
    "gemma2": Architecture(_BEFORE_AND_AFTER, norm_offset=1.0, biases=_ATTENTION_BIASES, scales=_gemma),
    "gemma3_text": Architecture(
        _BEFORE_AND_AFTER, norm_offset=1.0, head_norm=HeadNorm.EACH, biases=_ATTENTION_BIASES, scales=_gemma
    ),
    "olmo2": Architecture(_AFTER, head_norm=HeadNorm.TOGETHER, biases=_ATTENTION_BIASES, layers=_all_alike),
    "olmo3": Architecture(_AFTER, head_norm=HeadNorm.TOGETHER, biases=_ATTENTION_BIASES),
}
