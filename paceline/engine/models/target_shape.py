"""What a draft head must fit."""

from dataclasses import dataclass
from typing import Protocol

from paceline.engine.models.model_config import ModelConfig, TextConfig


class TargetShape(Protocol):
    @property
    def vocab_size(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _ModulesShape:
    vocab_size: int
    hidden_size: int
    num_layers: int
    max_model_len: int


def shape_of(config: TextConfig) -> TargetShape:
    if isinstance(config, ModelConfig):
        return config
    return _ModulesShape(
        config.vocab_size, config.source.hidden_size, config.source.num_hidden_layers, config.max_model_len
    )
