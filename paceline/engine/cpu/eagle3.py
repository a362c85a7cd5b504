"""An EAGLE-3 head on a CPU (see `models.draft_heads.eagle3`): one decoder layer over rows of many sequences."""

from collections.abc import Callable
from functools import partial

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
from paceline.engine.models.draft_heads.eagle3 import LAYER, Eagle3Config
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.model_config import TextConfig
from paceline.engine.models.shapes import as_tensor


class CpuEagle3:
    def __init__(
        self, head: LoadedDraftHead[Eagle3Config], target: TextConfig, max_model_len: int, quantization: str,
        embed: Callable[[Array], Array], lent_rows: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        """Takes the tensors out of `head`.

        embed, lent_rows: what the target lends to a head without its own: its embedding, [num_tokens] to
        [num_tokens, hidden_size], and its output rows for the tokens of `head.ids`, [head_size, hidden_size].
        """
        self.config, tensors = head.config, head.tensors
        layer, self._eps = self.config.layer, self.config.layer.norm_eps
        self.after, self.hidden_size, self.kv_shape = self.config.taps, layer.hidden_size, layer
        # Drafts change no output, so the bits of a row may depend on the others.
        make = partial(make_cpu_linear, quantization=quantization, batch_invariant=False)

        def norm(name: str) -> Array:
            return as_tensor(tensors.pop(name), torch.float32).numpy()

        embedding = tensors.pop("embed_tokens.weight", None)
        self._embed = embed if embedding is None else bits_of(embedding).__getitem__
        self._fuse = make(tensors.pop("fc.weight"), None)
        self._states_norm = norm("input_norm.weight") if self.config.norms_all_states else None
        self._state_norms = [
            norm(f"fc_norm.{index}.weight") for index in range(len(self.config.taps)) if self.config.norms_each_state
        ]
        self._hidden_norm, self._norm = norm(f"{LAYER}hidden_norm.weight"), norm("norm.weight")
        self._layer = CpuLayer(tensors, LAYER, layer, make, Ropes.of(layer, max_model_len), layer.layers[0])
        self._layer.scoring = self._layer.scoring._replace(first=FIRST_POSITION)
        rows = tensors.pop("lm_head.weight", lent_rows)
        assert rows is not None, "the target lends what the head lacks"
        self.head = Head(make(rows, None), head.ids, target.vocab_size)
        # The kernel of `attend_by`, for the caches that it is given.
        self._part_at = 0
        self._products = [self._fuse, *self._layer.products]

    def padded(self, num_rows: int) -> int:
        while (more := max(linear.padded(num_rows) for linear in self._products)) > num_rows:
            num_rows = more
        return num_rows

    def fuse(self, states: list[Array]) -> Array:
        """Computes what the head reads of the target's hidden states, [num_rows, hidden_size] each."""
        if self._state_norms:
            states = [rms_norm(each, norm, self._eps) for each, norm in zip(states, self._state_norms, strict=True)]
        joined = np.concatenate(states, 1)
        if self._states_norm is not None:
            joined = rms_norm(joined, self._states_norm, self._eps)
        num_rows = len(joined)
        return self._fuse(pad_rows(joined, self._fuse.padded(num_rows)))[:num_rows]

    def forward(self, tokens: Array, hidden: Array, attention: CpuPagedAttention, plan: AttentionPlan) -> Array:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        tokens: [num_rows] int64; hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        num_rows = len(tokens)
        normed = rms_norm(hidden, self._hidden_norm, self._eps)
        row = np.concatenate((rms_norm(self._embed(tokens), self._layer.attention_norm, self._eps), normed), 1)
        x, num_padded = normed if self.config.norms_residual else hidden, self.padded(num_rows)
        cache = attention.cache[0]
        self._part_at = self._part_at or part_address(row.dtype, cache)
        x = self._layer.run(pad_rows(x, num_padded), pad_rows(row, num_padded), plan, cache, self._part_at, self._eps)
        x = x[:num_rows]
        return rms_norm(x, self._norm, self._eps) if self.config.norms_output else x

    def logits(self, outputs: Array) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, head_size] float32."""
        num_rows = len(outputs)
        x = outputs if self.config.norms_output else rms_norm(outputs, self._norm, self._eps)
        return self.head(pad_rows(x, self.head.padded(num_rows)))[:num_rows]
