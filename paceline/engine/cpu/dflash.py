"""A DFlash head on a CPU (see `models.draft_heads.dflash`): its layers over blocks of many sequences."""

from functools import partial

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.eagle import Lender
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.kernels.attention import AttentionPlan, attend_by, part_address
from paceline.engine.cpu.kernels.rows import rms_norm
from paceline.engine.cpu.kernels.scalars import bits_of, pad_rows
from paceline.engine.cpu.linear import make_cpu_linear
from paceline.engine.cpu.llama import CpuLayer, Ropes
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.models.draft_heads.dflash import DFlashConfig
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.shapes import as_tensor


class CpuDFlash:
    def __init__(
        self,
        head: LoadedDraftHead[DFlashConfig],
        target: Lender,
        quantization: str,
        lent_rows: torch.Tensor | None = None,
    ) -> None:
        """Takes the tensors out of `head`. lent_rows: the target's output rows, if the head drafts only some tokens."""
        self.config, tensors, self._target = head.config, head.tensors, target
        layer, self._eps = self.config.layer, self.config.layer.norm_eps
        self.after, self.hidden_size, self.kv_shape = self.config.taps, layer.hidden_size, layer
        # Drafts change no output, so the bits of a row may depend on the others.
        make = partial(make_cpu_linear, quantization=quantization, batch_invariant=False)

        def norm(name: str) -> Array:
            return as_tensor(tensors.pop(f"{name}.weight"), torch.float32).numpy()

        embedding = tensors.pop("embed_tokens.weight", None)
        self._embed = target.embed if embedding is None else bits_of(embedding).__getitem__
        self._fuse = make(tensors.pop("fc.weight"), None)
        self._hidden_norm, self._norm = norm("hidden_norm"), norm("norm")
        ropes = Ropes.of(layer, target.max_model_len)
        self._layers = [
            CpuLayer(tensors, f"layers.{index}.", layer, make, ropes, spec) for index, spec in enumerate(layer.layers)
        ]
        rows = tensors.pop("lm_head.weight", lent_rows)
        self._own_head = None if rows is None else Head(make(rows, None), head.ids, target.config.vocab_size)
        self.head = self._own_head or target.head
        # The kernel of `attend_by`, for the caches that it is given.
        self._part_at = 0
        self._products = [each for layer in self._layers for each in layer.products]

    def padded(self, num_rows: int) -> int:
        while (more := max(linear.padded(num_rows) for linear in self._products)) > num_rows:
            num_rows = more
        return num_rows

    def fuse(self, states: list[Array]) -> Array:
        """Computes what the head reads of the target's hidden states, [num_rows, hidden_size] each."""
        joined = np.concatenate(states, 1)
        num_rows = len(joined)
        return rms_norm(
            self._fuse(pad_rows(joined, self._fuse.padded(num_rows)))[:num_rows], self._hidden_norm, self._eps
        )

    def forward(self, tokens: Array, context: Array, attention: CpuPagedAttention, plan: AttentionPlan) -> Array:
        """Writes the context's keys and values, and runs the layers over blocks: [num_tokens, hidden_size], normed.

        tokens: [num_tokens] int64, of blocks; context: rows of `fuse` that were not written before, [num_context,
        hidden_size]; plan: of the context's rows, then the blocks'.
        """
        num_tokens, num_rows = len(tokens), len(context) + len(tokens)
        x = pad_rows(self._embed(tokens), self.padded(num_tokens))
        self._part_at = self._part_at or part_address(context.dtype, attention.cache[0])
        for layer, cache in zip(self._layers, attention.cache, strict=True):
            # All in one product, which reads the weights once. No one needs the context's queries.
            row = np.concatenate((context, rms_norm(x[:num_tokens], layer.attention_norm, self._eps)))
            qkv = layer.qkv(pad_rows(row, layer.qkv.padded(num_rows)))
            mixed = attend_by(self._part_at, qkv, plan, layer.rotation, layer.scoring, self._eps, cache)
            if num_tokens:
                x = layer.add_attended(x, pad_rows(mixed[len(context) : num_rows], len(x)), self._eps)
        return rms_norm(x[:num_tokens], self._norm, self._eps)

    def logits(self, outputs: Array) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, head_size] float32."""
        if self._own_head is None:
            return self._target.project(outputs)
        num_rows = len(outputs)
        return self._own_head(pad_rows(outputs, self._own_head.padded(num_rows)))[:num_rows]
