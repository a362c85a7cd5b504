from dataclasses import dataclass
from typing import Any, ClassVar

from paceline.engine.models.architectures import ACTIVATIONS, ARCHITECTURES, Architecture, HeadNorm, LayerSpec, Scales
from paceline.engine.models.relations import require_related
from paceline.engine.models.supported_modules import causal_class, typed
from paceline.errors import ConfigError

# The logit of a token outside a draft's head; finite, so that a request that allows only such tokens can be sampled.
UNKNOWN_LOGIT = -1e9


@dataclass(frozen=True, slots=True)
class TextConfig:
    """What the engine needs to know of any model. transformers' modules know the rest."""

    implementation: ClassVar[str] = "transformers"

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    # The config of transformers. `rope` reads the rotary frequencies from it.
    source: Any

    @classmethod
    def from_transformers(cls, config: Any) -> "TextConfig":
        """Reads a transformers config. Raises ConfigError if transformers' modules can't run over our cache."""
        config = typed(config)
        require_related(config)
        causal_class(config)
        return cls(config.vocab_size, _longest(config), _ends(config), config)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(TextConfig):
    """Shape of a decoder, and what its layers compute."""

    implementation: ClassVar[str] = "own"

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    tied_embeddings: bool
    architecture: Architecture
    layers: tuple[LayerSpec, ...]
    scales: Scales
    # See ACTIVATIONS.
    activation: tuple[float, float]

    @classmethod
    def from_transformers(cls, config: Any) -> "ModelConfig":
        """Reads a transformers config. Raises ConfigError if our own layers can't run it, or its fields contradict."""
        if (architecture := ARCHITECTURES.get(config.model_type)) is None:
            raise ConfigError(
                f"model type {config.model_type!r} is not supported; supported: {', '.join(ARCHITECTURES)}"
            )
        require_related(config)
        field = "hidden_activation" if hasattr(config, "hidden_activation") else "hidden_act"
        # The config of a GGUF file has none if it is the usual one.
        if (activation := getattr(config, field, "silu")) not in ACTIVATIONS:
            raise ConfigError(f"{field} is {activation!r}; it must be {', '.join(ACTIVATIONS)}")
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if head_dim % 4:
            # The kernels take four features at a time, and do not check bounds.
            raise ConfigError(f"head_dim is {head_dim}; it must be a multiple of 4")
        return cls(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim,
            norm_eps=config.rms_norm_eps,
            tied_embeddings=config.tie_word_embeddings,
            max_model_len=_longest(config),
            eos_token_ids=_ends(config),
            architecture=architecture,
            layers=architecture.layers(config),
            scales=architecture.scales(config),
            activation=ACTIVATIONS[activation],
            source=config,
        )

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def score_scale(self) -> float:
        """Factor of the products of queries and keys."""
        return self.head_dim**-0.5 if self.scales.score is None else float(self.scales.score)


def _ends(config: Any) -> tuple[int, ...]:
    eos = config.eos_token_id
    return () if eos is None else tuple(eos) if isinstance(eos, list | tuple) else (eos,)


def _longest(config: Any) -> int:
    """Returns the length up to which the rotary embedding stays the same: longrope has another for longer sequences."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if (longest := getattr(config, "max_position_embeddings", None)) is None:
        raise ConfigError("max_position_embeddings is missing")
    # Parameters by type are dictionaries in the dictionary.
    for each in (parameters, *(value for value in parameters.values() if isinstance(value, dict))):
        is_longrope = each.get("rope_type") == "longrope"
        # PhiMoE also scales longer sequences by another factor.
        if is_longrope and any(each.get(f"short_{part}") != each.get(f"long_{part}") for part in ("factor", "mscale")):
            longest = min(longest, each["original_max_position_embeddings"])
    return int(longest)


def needed_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each tensor that a model of this config must have, by Hugging Face's name."""
    query, key = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    hidden, inner, architecture = config.hidden_size, config.intermediate_size, config.architecture
    expected = {"model.embed_tokens.weight": (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tied_embeddings:
        expected["lm_head.weight"] = (config.vocab_size, hidden)
    rows = {
        "self_attn.q_proj": query, "self_attn.k_proj": key, "self_attn.v_proj": key,
        "self_attn.qkv_proj": query + 2 * key,
        "mlp.gate_proj": inner, "mlp.up_proj": inner, "mlp.gate_up_proj": 2 * inner,
    }  # fmt: skip
    in_a_layer: dict[str, tuple[int, ...]] = {
        name: (rows[name], hidden) for name in (*architecture.qkv, *architecture.gate_up)
    }
    in_a_layer |= {"self_attn.o_proj": (hidden, query), "mlp.down_proj": (hidden, inner)}
    in_a_layer |= dict.fromkeys(architecture.norms.names, (hidden,))
    heads = {
        HeadNorm.NONE: {},
        HeadNorm.EACH: {"self_attn.q_norm": (config.head_dim,), "self_attn.k_norm": (config.head_dim,)},
        HeadNorm.TOGETHER: {"self_attn.q_norm": (query,), "self_attn.k_norm": (key,)},
    }
    in_a_layer |= heads[architecture.head_norm]
    return expected | {
        f"model.layers.{i}.{name}.weight": shape for i in range(config.num_layers) for name, shape in in_a_layer.items()
    }


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Returns those shapes, and the shapes of biases, which are optional."""
    shapes = needed_shapes(config)
    biases = {
        name.removesuffix("weight") + "bias": shape[:1]
        for name, shape in shapes.items()
        if name.endswith("_proj.weight")
    }
    return shapes | biases
