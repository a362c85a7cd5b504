"""What `head_drafting` needs of a draft head, and what heads of all formats have."""

from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch.nn import functional

from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.llama import CudaLayer, CudaModel, Ropes, place_logits
from paceline.engine.cuda.paged_attention import CudaPagedAttention, require_head_dim
from paceline.engine.cuda.products import CudaLinear, make_cuda_linear
from paceline.engine.models.draft_heads.head import DraftHeadConfig, LoadedDraftHead


class CudaDraftHead(Protocol):
    """A layer that drafts a token at a time, over rows of many sequences (see `cpu.draft_head`)."""

    # Numbers of the target's layers after which it reads the hidden state.
    after: tuple[int, ...]
    hidden_size: int

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention: ...

    def fuse(self, states: list[torch.Tensor]) -> torch.Tensor:
        """states: [num_rows, hidden_size] each, of the target -> [num_rows, hidden_size]."""
        ...

    def forward(self, plan: ForwardPlan, hidden: torch.Tensor, attention: CudaPagedAttention) -> torch.Tensor:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        ...

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, vocab_size] float32."""
        ...


class HeadParts:
    """What a head of our own layers takes from its tensors, or from its target."""

    def __init__(
        self,
        head: LoadedDraftHead[DraftHeadConfig],
        target: CudaModel,
        quantization: str,
        lent_rows: torch.Tensor | None,
        device: torch.device,
    ) -> None:
        """lent_rows: the target's output rows for the tokens of `head.ids`, [head_size, hidden_size], if it lends them."""
        self.layer_config, self._tensors, self._target, self.device = head.config.layer, head.tensors, target, device
        require_head_dim(self.layer_config.head_dim)
        # Drafts change no output, so the bits of a row may depend on the others.
        self._make = partial(make_cuda_linear, quantization=quantization, batch_invariant=False, device=device)
        self.dtype = self._tensors["fc.weight"].dtype
        own = self._tensors.pop("embed_tokens.weight", None)
        self._embedding = None if own is None else own.to(device)
        rows = self._tensors.pop("lm_head.weight", lent_rows)
        self.output = None if rows is None else self._make(rows, None)
        is_whole = np.array_equal(head.ids, np.arange(target.config.vocab_size))
        self._ids = None if is_whole else torch.from_numpy(head.ids).to(device)  # [head_size]
        self._ropes = Ropes.of(self.layer_config, target.max_model_len, device)

    def linear(self, name: str) -> CudaLinear:
        return self._make(self._tensors.pop(f"{name}.weight"), self._tensors.pop(f"{name}.bias", None))

    def norm(self, name: str) -> torch.Tensor | None:
        """Returns a norm's weights, [width] float32; None if the head has none."""
        weight = self._tensors.pop(f"{name}.weight", None)
        return None if weight is None else weight.float().to(self.device)

    def layer(self, index: int = 0, **scoring: Any) -> CudaLayer:
        """scoring: fields that differ from a target's."""
        config = self.layer_config
        made = CudaLayer(self._tensors, f"layers.{index}.", config, self._make, self._ropes, config.layers[index])
        made.scoring = replace(made.scoring, **scoring)
        return made

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention:
        layer = self.layer_config
        return CudaPagedAttention(
            layer.num_layers, num_blocks, block_size, layer.num_kv_heads, layer.head_dim, self.dtype, self.device
        )

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens: [num_rows] -> [num_rows, hidden_size]."""
        return self._target.embed(tokens) if self._embedding is None else functional.embedding(tokens, self._embedding)

    def project(self, normed: torch.Tensor) -> torch.Tensor:
        """normed: [num_rows, hidden_size] -> [num_rows, vocab_size] float32."""
        assert self.output is not None, "the target lends what the head lacks"
        return place_logits(self.output(normed), self._ids, self._target.new_logits(len(normed)))
