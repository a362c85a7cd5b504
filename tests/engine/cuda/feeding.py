"""Drives the GPU engine's forward pass as its runner does, and hands back the logits of every row."""

import torch

from paceline.engine.batch import BatchBuilder
from paceline.engine.cuda.forward_plan import ForwardShape, Staging
from paceline.engine.cuda.llama import NO_STATES, CudaLlama, CudaModel, States
from tests.engine.cuda.device import DEVICE
from tests.engine.feeding import Rows, load_part


class GpuFeeder:
    """A model with a cache of its own."""

    def __init__(self, model: CudaModel, batch_invariant: bool = True) -> None:
        self.num_blocks = 32
        self.batch_invariant = batch_invariant
        self.model = model
        self.attention = model.make_cache(self.num_blocks, 16)

    @classmethod
    def of(
        cls, name: str, dtype: torch.dtype, batch_invariant: bool = True, num_layers: int | None = None
    ) -> "GpuFeeder":
        """A model with our own layers."""
        config, tensors = load_part(name, dtype, num_layers)
        model = CudaLlama(config, tensors, "none", config.max_model_len, batch_invariant, DEVICE)
        return cls(model, batch_invariant)

    @torch.inference_mode()
    def feed(self, *shares: Rows, shape: ForwardShape | None = None, states: States = NO_STATES) -> list[torch.Tensor]:
        """One forward pass over all shares; returns each one's logits: [num_tokens, vocab_size].

        `shape`: with padding; `states`: as `CudaModel.forward` takes them.
        """
        builder = BatchBuilder()
        for share in shares:
            builder.add(share.tokens, share.position, share.blocks, [True] * len(share.tokens))
        batch = builder.build(builder.num_tokens)
        staging = Staging(
            shape or ForwardShape.of(batch, self.batch_invariant), self.num_blocks, self.attention.block_size, DEVICE
        )
        staging.fill(batch)
        out = self.model.new_logits(len(staging.plan.wanted))
        logits = self.model.forward(staging.plan, self.attention, out, states)[: batch.num_tokens]
        return list(logits.cpu().split([len(share.tokens) for share in shares]))
