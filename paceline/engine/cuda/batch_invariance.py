"""Checks batch invariance on this GPU (see `cpu.batch_invariance`)."""

import hashlib

import torch

from paceline.engine.backend import BatchCheck
from paceline.engine.batch import BatchBuilder
from paceline.engine.cuda.forward_plan import ForwardShape, Staging
from paceline.engine.cuda.llama import CudaModel
from paceline.engine.cuda.paged_attention import CudaPagedAttention

# The rows run in parts of each of these sizes, as in rounds and in chunks.
SPLITS = (1, 5, 17, 40)
NUM_ROWS = 80


@torch.inference_mode()
def check_batch_invariance(
    model: CudaModel, attention: CudaPagedAttention, batch_invariant: bool, device: torch.device
) -> BatchCheck:
    """Computes logits of random tokens, together and in parts. Overwrites the cache's first blocks."""
    num_rows = min(NUM_ROWS, model.max_model_len, (attention.num_blocks - 1) * attention.block_size)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(model.config.vocab_size, (num_rows,), generator=generator).tolist()

    def run(split: int) -> torch.Tensor:
        parts = []
        for done in range(0, num_rows, split):
            builder, part = BatchBuilder(), tokens[done : done + split]
            builder.add(part, done, list(range(attention.num_blocks - 1)), [True] * len(part))
            batch = builder.build(len(part))
            staging = Staging(
                ForwardShape.of(batch, batch_invariant), attention.num_blocks, attention.block_size, device
            )
            staging.fill(batch)
            parts.append(model.forward(staging.plan, attention, model.new_logits(len(part))))
        return torch.cat(parts)

    whole = run(num_rows)
    is_variant = not all(torch.equal(run(split), whole) for split in SPLITS)
    # Logits that depend on the batch need not repeat, so the device's name stands for them.
    results = torch.cuda.get_device_name(device).encode() if is_variant else whole.cpu().numpy().tobytes()
    return BatchCheck(["forward"] if is_variant else [], hashlib.blake2b(results, digest_size=8).hexdigest())
