"""Checks that a token's result does not depend on the rest of the batch, for models that run with transformers' modules.

`batch_invariance` says why. These models have no layers that could run alone, so the whole forward pass runs.
"""

import hashlib

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.backend import BatchCheck
from paceline.engine.batch import BatchBuilder
from paceline.engine.cache.block_pool import BlockPool
from paceline.engine.cache.recurrent_sequence import open_sequence
from paceline.engine.cache.sequence import SequenceOptions
from paceline.engine.cpu.batch_invariance import NUM_BLOCKS, NUM_REPEATED, NUM_ROWS, SPLITS, last_parts
from paceline.engine.cpu.elementwise import shared_counts
from paceline.engine.cpu.modules_model import CpuModules
from paceline.sampling_params import SamplingParams


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
        logits = model.logits(model.forward(batch, cache, cache.plan(batch.spans))).numpy()
        other.truncate(0)
        return logits

    num_known = min(max(SPLITS), num_rows)
    whole = run(num_rows, num_known)  # [num_known, vocab_size]
    variant_parts = []
    # Only the few elements where two threads part may differ, so more rows are repeated.
    shared = [(f"{split} tokens", split, 0, num_known) for split in shared_counts(model.widths, num_rows)]
    splits = [(f"{split} tokens", split, 0, NUM_REPEATED) for split in SPLITS]
    for name, split, others, num_repeated in [*splits, *shared, ("two sequences", 5, 7, NUM_REPEATED)]:
        for first in last_parts(num_rows, split, num_repeated):
            if first < num_rows - max(num_known, split):
                continue
            end = min(first + split, num_rows)
            sequence.truncate(min(first, sequence.length))
            if sequence.length < first:
                run(first, 0)
            num_wanted = min(end - first, num_known)
            known = whole[end - num_wanted - num_rows + num_known :][:num_wanted]
            if not np.array_equal(run(end, num_wanted, others), known):
                variant_parts.append(f"forward of {name}")
                break
    return BatchCheck(variant_parts, hashlib.blake2b(whole.tobytes(), digest_size=8).hexdigest())
