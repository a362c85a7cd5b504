"""The states of recurrent layers on a CPU, in slots of the state pool."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import TokenSpan
from paceline.engine.cache.recurrent_sequence import LOG_TOKENS
from paceline.engine.cpu.kernels.recurrent import (
    DeltaWeights,
    SpanPlan,
    StateArrays,
    convolve,
    delta_inputs,
    gated_inputs,
    gather,
    keep,
    run_delta_rule,
)
from paceline.engine.cpu.kernels.scalars import bits_of, tensor_of
from paceline.engine.modules.recurrent_interface import DeltaRule, Rule, ShortConvolution, StateShape


def _make_arrays(shape: StateShape, num_slots: int) -> StateArrays:
    """Takes memory only as slots are used."""
    return StateArrays(
        history=np.zeros((num_slots, shape.num_before, shape.num_inputs), np.float32),
        memory=np.zeros((num_slots, shape.num_heads, shape.key_dim, shape.value_dim), np.float32),
        log=np.zeros((num_slots, LOG_TOKENS, shape.num_inputs), np.float32),
    )


class CpuStates:
    def __init__(self, rules: dict[int, Rule], num_slots: int) -> None:
        self._layers = {layer: _make_arrays(rule.state, num_slots) for layer, rule in rules.items()}
        self._run = {layer: _RUN[type(rule)](rule) for layer, rule in rules.items()}

    def copy(self, source: int, destination: int) -> None:
        for arrays in self._layers.values():
            for array in arrays:
                array[destination] = array[source]

    def run(self, layer: int, inputs: tuple[torch.Tensor, ...], spans: Array) -> torch.Tensor:
        """Returns a layer's output for the rows of `spans` (see `plan`): [num_rows, width]."""
        return tensor_of(self._run[layer]([bits_of(each) for each in inputs], spans, self._layers[layer]))


def slot_bytes(rules: dict[int, Rule]) -> int:
    return sum(array.nbytes for rule in rules.values() for array in _make_arrays(rule.state, 1))


def plan_states(spans: list[TokenSpan]) -> Array:
    """Returns a row for each sequence, as SpanPlan: [num_spans, 9] int64."""
    rows, offset = [], 0
    for span in spans:
        state = span.state
        assert state is not None, "sequences of models with recurrent layers have a state"
        num_logged = span.position - state.base
        row = SpanPlan(
            span.first_token,
            span.num_tokens,
            num_logged,
            num_kept=state.new_base - state.base,
            num_in_snapshot=max(0, state.snapshot - state.base),
            slot=state.slot,
            snapshot_slot=state.snapshot_slot,
            is_fresh=state.base == 0,
            offset=offset,
        )
        rows.append(row)
        offset += num_logged + span.num_tokens
    return np.array(rows, np.int64)


_Run = Callable[[list[Array], Array, StateArrays], Array]


def _delta_rule(rule: DeltaRule) -> _Run:
    weights = DeltaWeights(rule.taps.numpy(), rule.norm.numpy(), float(rule.norm_eps))
    rates, biases = rule.decay_rates.numpy(), rule.decay_biases.numpy()

    def run(inputs: list[Array], spans: Array, state: StateArrays) -> Array:
        features, decays, learning_rates, gates = inputs
        rows = gather(delta_inputs(features, decays, learning_rates, rates, biases), spans, state)
        out = run_delta_rule(rows, spans, gates, weights, state)
        keep(rows, spans, state)
        return out

    return run


def _short_convolution(rule: ShortConvolution) -> _Run:
    taps, bias = rule.taps.numpy(), rule.bias.numpy()

    def run(inputs: list[Array], spans: Array, state: StateArrays) -> Array:
        (gates_x,) = inputs
        rows = gather(gated_inputs(gates_x), spans, state)
        out = convolve(rows, spans, gates_x, taps, bias)
        keep(rows, spans, state)
        return out

    return run


_RUN: dict[type, Callable[[Any], _Run]] = {DeltaRule: _delta_rule, ShortConvolution: _short_convolution}
