"""Recurrent layers: the gated delta rule and short convolutions, row by row.

A slot has the state after some tokens of a sequence, and the log of the inputs since (`cache.recurrent_sequence`). Each step
runs the log's rows again and goes on with its own, in the same order, so a row's result depends on the rows before it alone.
Of each sequence the kernels take these rows:

    history: the convolution's inputs before the state | log | new
"""

from typing import NamedTuple

import numpy as np
from numba import prange

from paceline.engine.arrays import Array
from paceline.engine.cpu.kernels.scalars import IN_LANES, ONE, compiled, exp_of_negative, put, widen


class StateArrays(NamedTuple):
    """A layer's part of the slots."""

    history: Array  # [num_slots, taps - 1, num_inputs] float32
    memory: Array  # [num_slots, heads, key_dim, value_dim] float32; heads is 0 without a delta rule
    log: Array  # [num_slots, LOG_TOKENS, num_inputs] float32


class SpanPlan(NamedTuple):
    """What a step does with one sequence: numbers of rows, counted from the state's base."""

    first_row: int
    num_rows: int
    # Rows in the log.
    num_logged: int
    # Rows after which the slot's state and the snapshot's are kept; 0: they stay.
    num_kept: int
    num_in_snapshot: int
    slot: int
    snapshot_slot: int
    # Whether the state is that of no tokens.
    is_fresh: int
    # The first row of `gather`'s result, not counting any history.
    offset: int


class DeltaWeights(NamedTuple):
    taps: Array  # [num_taps, 2 * key_heads * key_dim + heads * value_dim] float32
    norm: Array  # [value_dim] float32
    eps: float


@compiled()
def _span(row: Array) -> SpanPlan:
    return SpanPlan(row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8])


@compiled()
def _sigmoid(x: np.float32) -> np.float32:
    small = exp_of_negative(-abs(x))
    return (ONE if x >= 0 else small) / (ONE + small)


@compiled()
def delta_inputs(qkv: Array, decay: Array, beta: Array, rate: Array, bias: Array) -> Array:
    """Returns a row's query, key and value, its decays and its learning rates: [num_rows, width + 2 * heads] float32.

    qkv: [num_rows, width]; decay, beta: [num_rows, heads], before their activations; rate, bias: [heads] float32.
    """
    width, heads = qkv.shape[1], rate.size
    out = np.empty((qkv.shape[0], width + 2 * heads), np.float32)
    for row in range(out.shape[0]):
        for i in range(width):
            out[row, i] = widen(qkv[row, i])
        for head in range(heads):
            x = widen(decay[row, head]) + bias[head]
            softplus = max(x, np.float32(0)) + np.log1p(exp_of_negative(-abs(x)))
            out[row, width + head] = exp_of_negative(-rate[head] * softplus)
            out[row, width + heads + head] = _sigmoid(widen(beta[row, head]))
    return out


@compiled()
def gather(new: Array, spans: Array, state: StateArrays) -> Array:
    """Returns the history, the log and the new rows of each sequence: [num_gathered, num_inputs].

    new: [num_rows, num_inputs]; spans: [num_spans, 9] int64, as SpanPlan.
    """
    num_before = state.history.shape[1]
    last = _span(spans[spans.shape[0] - 1])
    num_gathered = last.offset + last.num_logged + last.num_rows + spans.shape[0] * num_before
    rows = np.zeros((num_gathered, new.shape[1]), np.float32)
    for index in range(spans.shape[0]):
        span = _span(spans[index])
        at = span.offset + index * num_before
        if not span.is_fresh:
            rows[at : at + num_before] = state.history[span.slot]
        at += num_before
        rows[at : at + span.num_logged] = state.log[span.slot, : span.num_logged]
        at += span.num_logged
        rows[at : at + span.num_rows] = new[span.first_row : span.first_row + span.num_rows]
    return rows


@compiled()
def keep(rows: Array, spans: Array, state: StateArrays) -> None:
    """Keeps history and log of each sequence for the next step. rows: what `gather` returned."""
    num_before = state.history.shape[1]
    for index in range(spans.shape[0]):
        span = _span(spans[index])
        at = span.offset + index * num_before
        end = at + num_before + span.num_logged + span.num_rows
        if span.num_in_snapshot:
            first = at + span.num_in_snapshot
            state.history[span.snapshot_slot] = rows[first : first + num_before]
        first = at + span.num_kept
        state.history[span.slot] = rows[first : first + num_before]
        first += num_before
        state.log[span.slot, : end - first] = rows[first:end]


@compiled()
def _tap(rows: Array, last: int, taps: Array, first: int, out: Array) -> None:
    """Writes the convolution's results after SiLU: some features, from `first` on, of row `last`."""
    out[:] = 0
    for tap in range(taps.shape[0]):
        row = rows[last - taps.shape[0] + 1 + tap]
        for i in range(out.size):
            out[i] += taps[tap, first + i] * row[first + i]
    for i in range(out.size):
        out[i] *= _sigmoid(out[i])


@compiled(IN_LANES)
def _normalize(x: Array, scale: np.float32) -> None:
    total = np.float32(0)
    for i in range(x.size):
        total += x[i] * x[i]
    factor = scale / np.sqrt(total + np.float32(1e-6))
    for i in range(x.size):
        x[i] *= factor


@compiled()
def _update(
    memory: Array, query: Array, key: Array, value: Array, decay: np.float32, rate: np.float32, out: Array
) -> None:
    """Updates a head's memory: [key_dim, value_dim], and reads from it. value is lost; out: [value_dim]."""
    width = value.size
    out[:] = 0
    for i in range(0, key.size, 4):
        for j in range(width):
            out[j] += (
                memory[i, j] * key[i] + memory[i + 1, j] * key[i + 1]
                + memory[i + 2, j] * key[i + 2] + memory[i + 3, j] * key[i + 3]
            )  # fmt: skip
    for j in range(width):
        value[j] = (value[j] - decay * out[j]) * rate
    out[:] = 0
    for i in range(0, key.size, 4):
        for j in range(width):
            first = memory[i, j] * decay + key[i] * value[j]
            second = memory[i + 1, j] * decay + key[i + 1] * value[j]
            third = memory[i + 2, j] * decay + key[i + 2] * value[j]
            fourth = memory[i + 3, j] * decay + key[i + 3] * value[j]
            memory[i, j], memory[i + 1, j], memory[i + 2, j], memory[i + 3, j] = first, second, third, fourth
            out[j] += first * query[i] + second * query[i + 1] + third * query[i + 2] + fourth * query[i + 3]


@compiled()
def _run_head(
    rows: Array, start: int, span: SpanPlan, head: int, gate: Array, weights: DeltaWeights, state: StateArrays, out: Array
) -> None:  # fmt: skip
    """Runs one head of one sequence. start: its first row in `rows`, after the history."""
    heads, key_dim, value_dim = state.memory.shape[1:]
    width = weights.taps.shape[1]
    key_heads = (width - heads * value_dim) // (2 * key_dim)
    key_head = head // (heads // key_heads)
    memory = np.zeros((key_dim, value_dim), np.float32)
    if not span.is_fresh:
        memory[:] = state.memory[span.slot, head]
    query, key = np.empty(key_dim, np.float32), np.empty(key_dim, np.float32)
    value, read = np.empty(value_dim, np.float32), np.empty(value_dim, np.float32)
    for done in range(span.num_logged + span.num_rows):
        row = start + done
        _tap(rows, row, weights.taps, key_head * key_dim, query)
        _tap(rows, row, weights.taps, (key_heads + key_head) * key_dim, key)
        _tap(rows, row, weights.taps, 2 * key_heads * key_dim + head * value_dim, value)
        _normalize(query, np.float32(key_dim) ** np.float32(-0.5))
        _normalize(key, ONE)
        _update(memory, query, key, value, rows[row, width + head], rows[row, width + heads + head], read)
        if done + 1 == span.num_kept:
            state.memory[span.slot, head] = memory
        if done + 1 == span.num_in_snapshot:
            state.memory[span.snapshot_slot, head] = memory
        if done >= span.num_logged:
            at = span.first_row + done - span.num_logged
            _gate(read, gate[at], weights, head * value_dim, out[at])


@compiled(IN_LANES)
def _gate(read: Array, gate: Array, weights: DeltaWeights, first: int, out: Array) -> None:
    """Writes the norm of a head's result, times SiLU(gate)."""
    total = np.float32(0)
    for i in range(read.size):
        total += read[i] * read[i]
    factor = ONE / np.sqrt(total / np.float32(read.size) + np.float32(weights.eps))
    for i in range(read.size):
        x = widen(gate[first + i])
        put(out, first + i, read[i] * factor * weights.norm[i] * x * _sigmoid(x))


@compiled(parallel=True)
def run_delta_rule(rows: Array, spans: Array, gate: Array, weights: DeltaWeights, state: StateArrays) -> Array:
    """Runs the gated delta rule (Yang et al. 2024, equation 10): [num_rows, heads * value_dim], normed and gated.

    rows: what `gather` returned; gate: [num_rows, heads * value_dim].
    """
    num_before, heads = state.history.shape[1], state.memory.shape[1]
    out = np.zeros_like(gate)
    for unit in prange(spans.shape[0] * heads):
        index = unit // heads
        span = _span(spans[index])
        start = span.offset + (index + 1) * num_before
        _run_head(rows, start, span, unit % heads, gate, weights, state, out)
    return out


@compiled()
def gated_inputs(gates_x: Array) -> Array:
    """Returns each row's first gate times x: [num_rows, width] float32. gates_x: [num_rows, 3 * width]."""
    width = gates_x.shape[1] // 3
    out = np.empty((gates_x.shape[0], width), np.float32)
    for row in range(out.shape[0]):
        for i in range(width):
            out[row, i] = widen(gates_x[row, i]) * widen(gates_x[row, 2 * width + i])
    return out


@compiled()
def convolve(rows: Array, spans: Array, gates_x: Array, taps: Array, bias: Array) -> Array:
    """Runs a short convolution, times the second gate: [num_rows, width].

    rows: what `gather` returned; gates_x: [num_rows, 3 * width]; taps: [num_taps, width] float32; bias: [width] float32.
    """
    num_before, width = taps.shape[0] - 1, taps.shape[1]
    out = np.zeros((gates_x.shape[0], width), gates_x.dtype)
    total = np.empty(width, np.float32)
    for index in range(spans.shape[0]):
        span = _span(spans[index])
        start = span.offset + index * num_before + span.num_logged
        for row in range(span.num_rows):
            at = span.first_row + row
            total[:] = bias
            for tap in range(num_before + 1):
                taken = rows[start + row + tap]
                for i in range(width):
                    total[i] += taps[tap, i] * taken[i]
            for i in range(width):
                put(out[at], i, total[i] * widen(gates_x[at, width + i]))
    return out
