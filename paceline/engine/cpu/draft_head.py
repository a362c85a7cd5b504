"""What `head_drafting` needs of a draft head, and a head of its target."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from paceline.engine.arrays import Array
from paceline.engine.batch import Batch
from paceline.engine.cpu.head import Head
from paceline.engine.cpu.kernels.attention import AttentionPlan
from paceline.engine.cpu.paged_attention import CpuPagedAttention, KvShape
from paceline.engine.models.model_config import TextConfig


class HeadTarget(Protocol):
    """A model whose hidden states a head can read."""

    @property
    def config(self) -> TextConfig: ...

    def forward_with_states(
        self, batch: Batch, attention: Any, plan: Any, after: Sequence[int]
    ) -> tuple[Any, list[Array]]:
        """Returns what `CpuModel.forward` returns, and all tokens' hidden states after some of the layers, in order.

        after: numbers of layers, increasing, 0 for the embedding; [num_tokens, hidden_size] each.
        """
        ...


class DraftHead(Protocol):
    """A layer that drafts a token at a time, over rows of many sequences.

    Its row at position t reads the token at t and something of [hidden_size] of the position before: what `fuse` makes of the
    target's hidden states at t - 1, or behind a drafted token its own output.
    """

    hidden_size: int
    head: Head

    @property
    def after(self) -> Sequence[int]:
        """Which hidden states it reads (see `HeadTarget`)."""
        ...

    @property
    def kv_shape(self) -> KvShape:
        """Of its layer's keys and values."""
        ...

    def fuse(self, states: list[Array]) -> Array:
        """states: [num_rows, hidden_size] each, of the target -> [num_rows, hidden_size]."""
        ...

    def forward(self, tokens: Array, hidden: Array, attention: CpuPagedAttention, plan: AttentionPlan) -> Array:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        tokens: [num_rows] int64; hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        ...

    def logits(self, outputs: Array) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, head_size] float32."""
        ...
