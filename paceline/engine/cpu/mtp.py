"""An MTP head on a CPU (see `models.mtp`): the layer's modules over our cache, as the target's are."""

from functools import partial

import numpy as np
import torch

from paceline.engine.arrays import Array
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.kernels.attention import AttentionPlan, HeadRotation, Scoring, part_address
from paceline.engine.cpu.kernels.scalars import ELEMENTS, bits_of, pad_rows, tensor_of
from paceline.engine.cpu.linear import make_cpu_linear
from paceline.engine.cpu.modules_model import CpuModules, attend_rotated, make_matrix, scores_of, unrotated
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.head_drafting import FIRST_POSITION
from paceline.engine.models.mtp import LoadedMtp
from paceline.engine.modules.attention_interface import LayerGroup
from paceline.engine.modules.build import build_decoder, norm_like
from paceline.engine.modules.probe import probe_layer, run_decoder


class _LayerStep:
    """Attention of one forward pass of the head's layer."""

    def __init__(
        self, attention: CpuPagedAttention, plan: AttentionPlan, scores: tuple[HeadRotation, Scoring], part_at: int
    ) -> None:
        self._attention, self._plan, self._scores, self._part_at = attention, plan, scores, part_at

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return attend_rotated(query, key, value, self._part_at, self._plan, *self._scores, self._attention.cache[0])


class CpuMtp:
    def __init__(self, head: LoadedMtp, target: CpuModules, dtype: torch.dtype, quantization: str) -> None:
        """Takes the tensors out of `head`. Raises ConfigError if the engine can't run its layer."""
        tensors, source = head.tensors, head.source
        # Drafts change no output, so the bits of a row may depend on the others.
        make = partial(make_cpu_linear, quantization=quantization, batch_invariant=False)
        fusion, rows = tensors.pop("fc.weight"), tensors.pop("lm_head.weight", None)
        embedding = tensors.pop("embed_tokens.weight", None)
        norms = [tensors.pop(f"{name}.weight").to(dtype) for name in ("embedding_norm", "hidden_norm")]
        self._decoder = build_decoder(source, tensors, dtype, partial(make_matrix, make=make, dtype=dtype))
        form = probe_layer(self._decoder, torch.device("cpu"))
        self.kv_shape = LayerGroup(1, *form[:3])
        self.hidden_size: int = source.hidden_size
        # After the final norm.
        self.after = (target.config.source.num_hidden_layers + 1,)
        rotation, scoring = scores_of(form)
        self._scores = rotation, scoring._replace(first=FIRST_POSITION)
        self._embedding_norm, self._hidden_norm = (norm_like(self._decoder, weight) for weight in norms)
        self._embed = target.embed if embedding is None else bits_of(embedding.to(dtype)).__getitem__
        self._fuse = make(fusion.to(dtype), None)
        self.head = target.head if rows is None else Head(make(rows.to(dtype), None), None, source.vocab_size)
        self._dtype = np.dtype(ELEMENTS[dtype])
        # The kernel of `attend_by`, for the cache that it is given.
        self._part_at = 0

    def fuse(self, states: list[Array]) -> Array:
        """Returns what the head reads of the target: its hidden state after the final norm, [num_rows, hidden_size]."""
        (state,) = states
        return state

    def forward(self, tokens: Array, hidden: Array, attention: CpuPagedAttention, plan: AttentionPlan) -> Array:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        tokens: [num_rows] int64; hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        num_rows = len(tokens)
        read = self._embedding_norm(tensor_of(self._embed(tokens))), self._hidden_norm(tensor_of(hidden))
        row = self._fuse(pad_rows(bits_of(torch.cat(read, 1)), self._fuse.padded(num_rows)))[:num_rows]
        self._part_at = self._part_at or part_address(self._dtype, attention.cache[0])
        step = _LayerStep(attention, unrotated(plan), self._scores, self._part_at)
        return bits_of(run_decoder(self._decoder, tensor_of(row), torch.from_numpy(plan.positions), step))

    def logits(self, outputs: Array) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, vocab_size] float32."""
        num_rows = len(outputs)
        return self.head(pad_rows(outputs, self.head.padded(num_rows)))[:num_rows]
