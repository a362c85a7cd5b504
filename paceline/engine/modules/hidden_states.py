"""The hidden states that transformers' modules pass from layer to layer."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from paceline.errors import ConfigError


def layers_of(model: Any) -> nn.ModuleList:
    """Returns the decoder's layers. Raises ConfigError if it has them in no list."""
    decoder = model.base_model
    num_layers = decoder.config.num_hidden_layers
    for module in decoder.children():
        if isinstance(module, nn.ModuleList) and len(module) == num_layers:
            return module
    raise ConfigError(
        f"model type {decoder.config.model_type!r} has its layers in no list, so their states can't be read"
    )


@contextmanager
def recorded_states(model: Any, after: Sequence[int]) -> Iterator[list[torch.Tensor]]:
    """Yields a list that a forward pass within fills with hidden states, in order: [1, num_rows, hidden_size] each.

    after: numbers of layers, increasing; 0 for what the first layer takes, one more than all layers for what the head takes.
    """
    layers, states = layers_of(model), list[torch.Tensor]()

    def keep(output: Any) -> None:
        # Some layers return a tuple, decoders an object like one.
        states.append(output if isinstance(output, torch.Tensor) else output[0])

    def keep_input(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        keep(given[0] if given else named["hidden_states"])

    def keep_output(module: nn.Module, given: tuple[Any, ...], output: Any) -> None:
        keep(output)

    with ExitStack() as hooks:
        for number in after:
            if number == 0:
                handle = layers[0].register_forward_pre_hook(keep_input, with_kwargs=True)
            else:
                place = layers[number - 1] if number <= len(layers) else model.base_model
                handle = place.register_forward_hook(keep_output)
            hooks.callback(handle.remove)
        yield states
