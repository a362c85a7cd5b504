"""An EAGLE-1 head on a CPU (see `models.draft_heads.eagle`): one decoder layer over rows of many sequences."""

from functools import partial
from typing import Protocol

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.kernels.attention import AttentionPlan, part_address
from paceline.engine.cpu.kernels.rows import rms_norm
from paceline.engine.cpu.kernels.scalars import bits_of, pad_rows
from paceline.engine.cpu.linear import make_cpu_linear
from paceline.engine.cpu.llama import CpuLayer, Ropes
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.head_drafting import FIRST_POSITION
from paceline.engine.models.draft_heads.eagle import LAYER, EagleConfig
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.model_config import TextConfig
from paceline.engine.models.shapes import as_tensor


class Lender(Protocol):
    """A target, of which a head uses the embedding, the last norm and the output matrix."""

    head: Head
    max_model_len: int

    @property
    def config(self) -> TextConfig: ...

    def embed(self, tokens: Array) -> Array: ...
    def normed(self, x: Array) -> Array: ...
    def project(self, normed: Array) -> torch.Tensor: ...


class CpuEagle:
    def __init__(
        self,
        head: LoadedDraftHead[EagleConfig],
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

        def norm(name: str) -> Array:  # [0] if the head has none
            return as_tensor(tensors.pop(f"{name}.weight", torch.empty(0)), torch.float32).numpy()

        embedding = tensors.pop("embed_tokens.weight", None)
        self._embed = target.embed if embedding is None else bits_of(embedding).__getitem__
        self._fuse = make(tensors.pop("fc.weight"), tensors.pop("fc.bias", None))
        self._embedding_norm, self._norm = norm("embedding_layernorm"), norm("pre_lm_head_layernorm")
        ropes = Ropes.of(layer, target.max_model_len)
        self._layer = CpuLayer(tensors, LAYER, layer, make, ropes, layer.layers[0])
        self._layer.scoring = self._layer.scoring._replace(first=FIRST_POSITION)
        rows = tensors.pop("lm_head.weight", lent_rows)
        self._own_head = None if rows is None else Head(make(rows, None), head.ids, target.config.vocab_size)
        self.head = self._own_head or target.head
        # The kernel of `attend_by`, for the caches that it is given.
        self._part_at = 0
        self._products = [self._fuse, *self._layer.products]

    def padded(self, num_rows: int) -> int:
        while (more := max(linear.padded(num_rows) for linear in self._products)) > num_rows:
            num_rows = more
        return num_rows

    def fuse(self, states: list[Array]) -> Array:
        """Computes what the head reads of the target's hidden states, [num_rows, hidden_size] each."""
        [last] = states
        return self._target.normed(last)

    def forward(self, tokens: Array, hidden: Array, attention: CpuPagedAttention, plan: AttentionPlan) -> Array:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        tokens: [num_rows] int64; hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        num_rows, eps = len(tokens), self._eps
        embedded = rms_norm(self._embed(tokens), self._embedding_norm, eps)
        x = self._fuse(pad_rows(np.concatenate((embedded, hidden), 1), self.padded(num_rows)))
        row, cache = rms_norm(x, self._layer.attention_norm, eps), attention.cache[0]
        self._part_at = self._part_at or part_address(row.dtype, cache)
        x = self._layer.run(x, row, plan, cache, self._part_at, eps)[:num_rows]
        return rms_norm(x, self._norm, eps)

    def logits(self, outputs: Array) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, head_size] float32."""
        if self._own_head is None:
            return self._target.project(outputs)
        num_rows = len(outputs)
        return self._own_head(pad_rows(outputs, self._own_head.padded(num_rows)))[:num_rows]
