"""Checks that a token's result does not depend on the rest of the batch.

Otherwise greedy output differs with speculation. Here, layer by layer, for the engine's own; `forward_invariance` has the
check of transformers' modules. It depends on processor and torch version, so it is checked at load. The
results themselves depend on them too: their digest tells whether two servers compute the same tokens.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.backend import BatchCheck
from paceline.engine.batch import BatchBuilder
from paceline.engine.cpu.kernels.scalars import bits_of, pad_rows
from paceline.engine.cpu.llama import CpuLlama

# The last rows run again in parts of each of these sizes.
SPLITS = (1, 5, 17, 40, 100)
# At least this many of the last rows, or one part of them.
NUM_REPEATED = 16
NUM_ROWS = 200
# A layer's rows fill at least this many blocks: torch has several orders of summation, and some differ only after
# the fourth block.
NUM_BLOCKS = 9


@torch.inference_mode()
def check_batch_invariance(model: CpuLlama, block_size: int) -> BatchCheck:
    """Runs one layer of each kind, and the head, on random rows, together and in parts."""
    num_rows = min(max(NUM_ROWS, NUM_BLOCKS * block_size), model.max_model_len)
    # Uniform: normally distributed numbers would differ between processors themselves.
    values = np.random.default_rng(0).random((num_rows, model.config.hidden_size), dtype=np.float32)
    x = bits_of(torch.from_numpy(4 * values - 2).to(model.dtype))
    num_blocks = -(-num_rows // block_size)
    variant_parts, digest = [], hashlib.blake2b(digest_size=8)
    kinds = {layer.kind: index for index, layer in reversed([*enumerate(model.layers)])}
    parts: dict[str, tuple[Callable[[Array, int], Array], Array]] = {
        f"decoder layer {index}": (_OneLayer(model, index, num_blocks, block_size).run, x)
        for index in sorted(kinds.values())
    }
    parts["head"] = lambda rows, _: model.logits(rows).numpy(), x[:NUM_ROWS]
    for name, (run, rows) in parts.items():
        whole = run(rows, 0)
        digest.update(np.ascontiguousarray(whole).tobytes())
        if _depends_on_batch(run, rows, whole):
            variant_parts.append(name)
    return BatchCheck(variant_parts, digest.hexdigest())


def _depends_on_batch(run: Callable[[Array, int], Array], x: Array, whole: Array) -> bool:
    """`whole`: what `run` returns for all of `x`."""
    return not all(
        np.array_equal(run(x[first : first + split], first), whole[first : first + split])
        for split in SPLITS
        for first in last_parts(x.shape[0], split)
    )


def last_parts(num_rows: int, split: int, num_repeated: int = NUM_REPEATED) -> range:
    """Returns the first row of each part of `split` rows that together are the last `num_repeated` rows or more."""
    num_parts = max(1, num_repeated // split)
    return range(max(0, num_rows - num_parts * split), num_rows, split)


class _OneLayer:
    def __init__(self, model: CpuLlama, index: int, num_blocks: int, block_size: int) -> None:
        self._model = model
        self._index = index
        self._blocks = list(range(num_blocks))
        self._attention = model.make_cache(num_blocks, block_size, num_layers=1)

    def run(self, x: Array, position: int) -> Array:
        """x: [num_rows, hidden_size], from `position` on."""
        builder, num_rows = BatchBuilder(), x.shape[0]
        builder.add([0] * num_rows, position, self._blocks, [False] * num_rows)
        batch = builder.build(self._model.padded(builder.num_tokens))
        plan = self._attention.plan(batch.spans)
        return self._model.run_layers(pad_rows(x, batch.num_tokens), self._attention, plan, self._index)[:num_rows]
