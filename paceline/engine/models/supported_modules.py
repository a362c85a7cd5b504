"""Which models run with transformers' modules: decoders that declare its attention interface."""

from typing import Any

import torch

from paceline.errors import ConfigError

RECURRENT_TYPES = ("linear_attention", "conv")
LAYER_TYPES = ("full_attention", "sliding_attention", *RECURRENT_TYPES)
# Models that use the attention interface but do not declare it.
UNDECLARED = ("qwen3_5_text", "qwen3_5_moe_text")


def typed(config: Any) -> Any:
    """Returns a transformers config in its model type's class: a GGUF file's has none."""
    from transformers import AutoConfig, PreTrainedConfig

    if type(config) is not PreTrainedConfig:
        return config
    fields = {name: value for name, value in config.to_dict().items() if name != "model_type"}
    return AutoConfig.for_model(config.model_type, **fields)


def parameter_names(config: Any) -> list[str]:
    """Returns the names of the parameters of a decoder's modules."""
    with torch.device("meta"):
        return list(causal_class(config)._from_config(config).state_dict())


def causal_class(config: Any) -> Any:
    """Returns the class of a transformers config's decoder. Raises ConfigError, saying what is missing, if it can't run."""
    # Here, because they import torch's compiler, which our own models do not need.
    from transformers import AutoModelForCausalLM

    kind = config.model_type
    if type(config) not in AutoModelForCausalLM._model_mapping:
        raise ConfigError(f"model type {kind!r} has no decoder in transformers")
    model = AutoModelForCausalLM._model_mapping[type(config)]
    if not (model._supports_attention_backend or kind in UNDECLARED):
        raise ConfigError(f"model type {kind!r} does not declare transformers' attention interface")
    if unknown := set(getattr(config, "layer_types", None) or ()).difference(LAYER_TYPES):
        raise ConfigError(
            f"model type {kind!r} has layers of type {sorted(unknown)[0]!r}; supported: {', '.join(LAYER_TYPES)}"
        )
    # "vision" is for images alone.
    if (given := getattr(config, "use_bidirectional_attention", None)) in (True, "all"):
        raise ConfigError(f"use_bidirectional_attention is {given!r}; it must be unset: a token sees those before it")
    return model
