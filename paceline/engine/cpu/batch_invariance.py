"""Batch invariance check: does a row's result depend on the rows beside it?

Only a batch invariant model gives the same greedy output with and without speculation. Processors and versions of torch
differ in this, so the check runs at load, on this machine.
"""

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.kernels.scalars import bits_of, pad_rows
from paceline.engine.cpu.llama import CpuLlama

# The rows run in parts of each of these sizes. Each result is compared with one run of all rows.
SPLITS = (1, 5, 17, 40, 100)
NUM_ROWS = 200
# The layer's rows fill at least this many blocks: torch has several orders of summation, and some differ only after
# the fourth block.
NUM_BLOCKS = 9


@torch.inference_mode()
def find_batch_variant_parts(model: CpuLlama, block_size: int) -> list[str]:
    """Names of the model's parts whose rows depend on the rows beside them; empty if the model is batch invariant.

    Runs the first layer (all layers have the same shapes) and the head on random rows, together and in parts.
    """
    generator = torch.Generator(device="cpu").manual_seed(0)
    config = model.config
    weight_dtype = model.dtype
    num_rows = min(max(NUM_ROWS, NUM_BLOCKS * block_size), model.max_model_len)
    x = bits_of(torch.randn(num_rows, config.hidden_size, generator=generator).to(weight_dtype))
    dependent = []
    whole = _run_layer(model, x, num_rows, block_size)
    if not all(np.array_equal(_run_layer(model, x, split, block_size), whole) for split in SPLITS):
        dependent.append("decoder layer")
    x = x[:NUM_ROWS]
    logits = model.run_head(x)
    if not all(torch.equal(torch.cat([model.run_head(part) for part in _parts(x, split)]), logits) for split in SPLITS):
        dependent.append("head")
    return dependent


def _parts(x: Array, split: int) -> list[Array]:
    return [x[first : first + split] for first in range(0, x.shape[0], split)]


def _run_layer(model: CpuLlama, x: Array, split: int, block_size: int) -> Array:
    """The first layer's output for x: [num_rows, hidden_size], the rows of one sequence, fed `split` rows at a time."""
    num_blocks = -(-x.shape[0] // block_size)
    attention = model.make_cache(num_blocks, block_size, num_layers=1)
    outputs, position = [], 0
    for part in _parts(x, split):
        builder = BatchBuilder()
        num_rows = part.shape[0]
        builder.add([0] * num_rows, position, list(range(num_blocks)), [False] * num_rows)
        batch = builder.build(model.padded(builder.num_rows))
        plan = attention.plan(batch.spans)
        outputs.append(model.run_layers(pad_rows(part, batch.num_rows), attention, plan)[:num_rows])
        position += num_rows
    return np.concatenate(outputs)
