"""Checks that a token's result does not depend on the rest of the batch.

Otherwise greedy output differs with speculation. It depends on processor and torch version, so it is checked at load. The
results themselves depend on them too: their digest tells whether two servers compute the same tokens.
"""

import hashlib
from collections.abc import Callable

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.backend import BatchCheck
from paceline.engine.batch import BatchBuilder
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import open_sequence
from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.cpu.kernels.scalars import bits_of, pad_rows
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.modules import CpuModules
from paceline.sampling import SamplingParams

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
    parts: dict[str, tuple[Callable[[Array, int], Array], Array]] = {
        f"decoder layer {index}": (_OneLayer(model, index, num_blocks, block_size).run, x)
        for index in map(model.config.layers.index, dict.fromkeys(model.config.layers))
    }
    parts["head"] = lambda rows, _: model.run_head(rows).numpy(), x[:NUM_ROWS]
    for name, (run, rows) in parts.items():
        whole = run(rows, 0)
        digest.update(np.ascontiguousarray(whole).tobytes())
        if _depends_on_batch(run, rows, whole):
            variant_parts.append(name)
    return BatchCheck(variant_parts, digest.hexdigest())


@torch.inference_mode()
def check_forward(model: CpuModules, block_size: int) -> BatchCheck:
    """Runs the whole model on random tokens, together and in parts."""
    num_rows = min(max(NUM_ROWS, NUM_BLOCKS * block_size), model.max_model_len)
    tokens = np.random.default_rng(0).integers(model.config.vocab_size, size=num_rows).tolist()
    num_blocks = -(-num_rows // block_size)
    cache = model.make_cache(2 * num_blocks, block_size)
    pool = BlockPool(2 * num_blocks, block_size, cache.copy_blocks, caches_prefixes=False, states=cache.states)
    options = SequenceOptions(SamplingParams(seed=0), num_rows, ())
    sequence, other = open_sequence(options, pool), open_sequence(options, pool)

    def run(end: int, num_wanted: int, others: int = 0) -> Array:
        """Feeds the sequence up to `end`. Returns the last rows' logits. `others`: rows of another sequence in the batch."""
        builder = BatchBuilder()
        fed = [(other, others, 0)] * (others > 0) + [(sequence, end - sequence.length, num_wanted)]
        for each, count, wanted in fed:
            each.reserve(each.length + count)
            rows = tokens[each.length : each.length + count]
            flags = [False] * (count - wanted) + [True] * wanted
            builder.add(rows, each.length, each.blocks, flags, each.plan_state(count))
            each.append(rows)
        batch = builder.build(model.padded(builder.num_tokens))
        logits = model.forward(batch, cache, cache.plan(batch.spans)).numpy()
        other.truncate(0)
        return logits

    num_known = min(max(SPLITS), num_rows)
    whole = run(num_rows, num_known)  # [num_known, vocab_size]
    variant_parts = []
    for name, split, others in [*((f"{split} tokens", split, 0) for split in SPLITS), ("two sequences", 5, 7)]:
        firsts = [first for first in _firsts(num_rows, split) if first >= num_rows - num_known]
        for first in firsts:
            end = min(first + split, num_rows)
            sequence.truncate(min(first, sequence.length))
            if sequence.length < first:
                run(first, 0)
            known = whole[first - num_rows + num_known :][: end - first]
            if not np.array_equal(run(end, end - first, others), known):
                variant_parts.append(f"forward of {name}")
                break
    return BatchCheck(variant_parts, hashlib.blake2b(whole.tobytes(), digest_size=8).hexdigest())


def _depends_on_batch(run: Callable[[Array, int], Array], x: Array, whole: Array) -> bool:
    """`whole`: what `run` returns for all of `x`."""
    return not all(
        np.array_equal(run(x[first : first + split], first), whole[first : first + split])
        for split in SPLITS
        for first in _firsts(x.shape[0], split)
    )


def _firsts(num_rows: int, split: int) -> range:
    num_parts = max(1, NUM_REPEATED // split)
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
