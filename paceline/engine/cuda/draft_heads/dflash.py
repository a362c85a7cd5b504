"""A DFlash head on a GPU (see `models.draft_heads.dflash`): its layers over blocks of many sequences."""

import torch

from paceline.engine.cuda.draft_heads.draft_head import HeadParts
from paceline.engine.cuda.forward_plan import LARGE_TILE_ROWS, ForwardPlan
from paceline.engine.cuda.llama import CudaLlama
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.row_kernels import add_and_norm
from paceline.engine.models.draft_heads.dflash import DFlashConfig
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.errors import ConfigError


class CudaDFlash:
    def __init__(
        self, head: LoadedDraftHead[DFlashConfig], target: CudaLlama, quantization: str, lent_rows: torch.Tensor | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Takes the tensors out of `head`. lent_rows: the target's output rows, if the head drafts only some tokens."""
        self.config = config = head.config
        if config.block_size > LARGE_TILE_ROWS:
            # The rows of a block see each other, so one tile of attention has all of them.
            raise ConfigError(
                f"draft_head {head.name!r}: block_size is {config.block_size}; on a GPU it must be at most {LARGE_TILE_ROWS}"
            )
        self.after, self.hidden_size, self._eps = config.taps, config.layer.hidden_size, config.layer.norm_eps
        self._target = target
        self._parts = parts = HeadParts(head, target, quantization, lent_rows, device)
        self._fuse, self._hidden_norm, self._norm = parts.linear("fc"), parts.norm("hidden_norm"), parts.norm("norm")
        self._layers = [parts.layer(index, sees_ahead=True) for index in range(config.layer.num_layers)]

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention:
        return self._parts.make_cache(num_blocks, block_size)

    def fuse(self, states: list[torch.Tensor]) -> torch.Tensor:
        """Computes what the head reads of the target's hidden states, [num_rows, hidden_size] each."""
        return add_and_norm(self._fuse(torch.cat(states, 1)), None, self._hidden_norm, self._eps)

    def forward(self, plan: ForwardPlan, context: torch.Tensor, attention: CudaPagedAttention) -> torch.Tensor:
        """Writes the context's keys and values, and runs the layers over blocks: [num_tokens, hidden_size], normed.

        plan: of the context's rows, then the blocks'; context: rows of `fuse` that were not written before, [num_context,
        hidden_size].
        """
        num_context, scale = len(context), float(self.config.layer.scales.residual)
        x, added, norm = self._parts.embed(plan.tokens[num_context:]), None, None
        for index, layer in enumerate(self._layers):
            # No kernel can be launched for no rows.
            row = add_and_norm(x, added, layer.attention_norm, self._eps, norm, scale) if len(x) else x
            # All in one product, which reads the weights once.
            mixed = layer.attend(torch.cat((context, row)), index, plan, attention)[num_context:]
            if len(x):
                added, norm = layer.add_attended(x, mixed), layer.down_norm
        return add_and_norm(x, added, self._norm, self._eps, norm, scale) if len(x) else x

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, vocab_size] float32."""
        return self._target.project(outputs) if self._parts.output is None else self._parts.project(outputs)
