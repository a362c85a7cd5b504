"""Runs transformers' modules, and probes with one row whether each layer is attention or recurrent."""

from collections.abc import Callable
from typing import Any

import torch

from paceline.engine.modules.attention_interface import NAME, PROBE, AttentionStep, FormRecorder, LayerForm
from paceline.engine.modules.recurrent_interface import Rule
from paceline.errors import ConfigError


class _Recorder(FormRecorder):
    """A step that notes each layer's form or rule; recurrent layers add nothing to the rows."""

    def __init__(self) -> None:
        super().__init__()
        self.rules: dict[int, Rule] = {}

    def recur(self, layer: int, rule: Rule, *inputs: torch.Tensor) -> torch.Tensor:
        self.rules[layer] = rule
        return inputs[0].new_zeros(len(inputs[0]), rule.width)


def run(
    model: Any, tokens: torch.Tensor, positions: torch.Tensor | None, wanted: torch.Tensor, step: AttentionStep
) -> torch.Tensor:
    """Returns the logits of the wanted rows: [num_wanted, vocab_size].

    tokens, positions: [num_rows] int64; positions may be None for the model's own; wanted: [num_wanted] int64.
    """
    output = model(
        input_ids=tokens[None], position_ids=None if positions is None else positions[None], use_cache=False,
        logits_to_keep=wanted, paceline_step=step,
    )  # fmt: skip
    logits: torch.Tensor = output.logits[0]
    return logits


def run_decoder(decoder: Any, rows: torch.Tensor, positions: torch.Tensor | None, step: AttentionStep) -> torch.Tensor:
    """Returns what a decoder without a head makes of rows in the place of embeddings, normed: [num_rows, hidden_size].

    rows: [num_rows, hidden_size]; positions: as `run`.
    """
    output = decoder(
        inputs_embeds=rows[None], position_ids=None if positions is None else positions[None], use_cache=False,
        paceline_step=step,
    )  # fmt: skip
    states: torch.Tensor = output.last_hidden_state[0]
    return states


@torch.inference_mode()
def probe(model: Any, device: torch.device) -> tuple[dict[int, LayerForm], dict[int, Rule]]:
    """Returns the forms of layers with attention, and the rules of recurrent ones.

    Raises ConfigError if the model can't run over our cache.
    """
    # Not token 0: as padding it may have position 0 in a model that counts from another.
    token, first = (torch.tensor([number], device=device) for number in (1, 0))
    return _probe(model, lambda positions, step: run(model, token, positions, first, step), first)


@torch.inference_mode()
def probe_layer(decoder: Any, device: torch.device) -> LayerForm:
    """Returns the form of a decoder's only layer (see `run_decoder`). Raises ConfigError if it can't run over our cache."""
    row = torch.ones(1, decoder.config.hidden_size, dtype=decoder.dtype, device=device)
    forms, _ = _probe(
        decoder,
        lambda positions, step: run_decoder(decoder, row, positions, step),
        torch.zeros(1, dtype=torch.int64, device=device),
    )
    return forms[0]


def _probe(
    model: Any, feed: Callable[[torch.Tensor | None, AttentionStep], torch.Tensor], first: torch.Tensor
) -> tuple[dict[int, LayerForm], dict[int, Rule]]:
    """feed: runs one row at some position; first: the position 0, [1] int64."""
    kind, recorder = model.config.model_type, _Recorder()
    model.set_attn_implementation(PROBE)
    try:
        result = feed(first, recorder)
        by_default = feed(None, _Recorder())
    except ConfigError:
        raise
    except Exception as error:  # a model's code may raise anything
        reason = str(error).splitlines()[0] if str(error) else ""
        raise ConfigError(
            f"model type {kind!r} does not run over our cache: {type(error).__name__}: {reason}"
        ) from error
    model.set_attn_implementation(NAME)
    known = recorder.forms | recorder.rules
    if idle := [layer for layer in range(model.config.num_hidden_layers) if layer not in known]:
        raise ConfigError(f"layer {idle[0]} has no attention")
    if not recorder.forms:
        raise ConfigError("all layers are recurrent; at least one must have attention")
    if not torch.equal(result, by_default):
        raise ConfigError(f"model type {kind!r} does not count positions from 0, as the cache does")
    return recorder.forms, recorder.rules
