"""An EAGLE-1 head on a GPU (see `models.draft_heads.eagle`): one decoder layer over rows of many sequences."""

import torch

from paceline.engine.cuda.draft_heads.draft_head import HeadParts
from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.llama import CudaLlama
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.row_kernels import add_and_norm
from paceline.engine.head_drafting import FIRST_POSITION
from paceline.engine.models.draft_heads.eagle import EagleConfig
from paceline.engine.models.draft_heads.head import LoadedDraftHead


class CudaEagle:
    def __init__(
        self, head: LoadedDraftHead[EagleConfig], target: CudaLlama, quantization: str, lent_rows: torch.Tensor | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Takes the tensors out of `head`. lent_rows: the target's output rows, if the head drafts only some tokens."""
        self.config = config = head.config
        self.after, self.hidden_size, self._eps = config.taps, config.layer.hidden_size, config.layer.norm_eps
        self._target = target
        self._parts = parts = HeadParts(head, target, quantization, lent_rows, device)
        self._fuse = parts.linear("fc")
        self._embedding_norm, self._norm = parts.norm("embedding_layernorm"), parts.norm("pre_lm_head_layernorm")
        self._layer = parts.layer(first=FIRST_POSITION)

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention:
        return self._parts.make_cache(num_blocks, block_size)

    def fuse(self, states: list[torch.Tensor]) -> torch.Tensor:
        """Computes what the head reads of the target's hidden states, [num_rows, hidden_size] each."""
        [last] = states
        return self._target.normed(last)

    def forward(self, plan: ForwardPlan, hidden: torch.Tensor, attention: CudaPagedAttention) -> torch.Tensor:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        layer, eps = self._layer, self._eps
        embedded = add_and_norm(self._parts.embed(plan.tokens), None, self._embedding_norm, eps)
        x = self._fuse(torch.cat((embedded, hidden), 1))
        added = layer.run(x, add_and_norm(x, None, layer.attention_norm, eps), 0, plan, attention)
        return add_and_norm(x, added, self._norm, eps, layer.down_norm, float(self.config.layer.scales.residual))

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, vocab_size] float32."""
        return self._target.project(outputs) if self._parts.output is None else self._parts.project(outputs)
