"""An EAGLE-3 head on a GPU (see `models.draft_heads.eagle3`): one decoder layer over rows of many sequences."""

import torch

from paceline.engine.cuda.draft_heads.draft_head import HeadParts
from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.llama import CudaModel
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.row_kernels import add_and_norm
from paceline.engine.head_drafting import FIRST_POSITION
from paceline.engine.models.draft_heads.eagle3 import LAYER, Eagle3Config
from paceline.engine.models.draft_heads.head import LoadedDraftHead


class CudaEagle3:
    def __init__(
        self, head: LoadedDraftHead[Eagle3Config], target: CudaModel, quantization: str, lent_rows: torch.Tensor | None,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Takes the tensors out of `head`. lent_rows: the target's output rows for the tokens of a head without its own."""
        self.config = config = head.config
        self.after, self.hidden_size, self._eps = config.taps, config.layer.hidden_size, config.layer.norm_eps
        self._parts = parts = HeadParts(head, target, quantization, lent_rows, device)
        self._fuse, self._states_norm = parts.linear("fc"), parts.norm("input_norm")
        self._state_norms = [parts.norm(f"fc_norm.{index}") for index in range(len(config.taps))]
        self._hidden_norm, self._norm = parts.norm(f"{LAYER}hidden_norm"), parts.norm("norm")
        self._layer = parts.layer(first=FIRST_POSITION)

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention:
        return self._parts.make_cache(num_blocks, block_size)

    def fuse(self, states: list[torch.Tensor]) -> torch.Tensor:
        """Computes what the head reads of the target's hidden states, [num_rows, hidden_size] each."""
        normed = [
            add_and_norm(each, None, norm, self._eps) for each, norm in zip(states, self._state_norms, strict=True)
        ]
        return self._fuse(add_and_norm(torch.cat(normed, 1), None, self._states_norm, self._eps))

    def forward(self, plan: ForwardPlan, hidden: torch.Tensor, attention: CudaPagedAttention) -> torch.Tensor:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        layer, eps = self._layer, self._eps
        normed = add_and_norm(hidden, None, self._hidden_norm, eps)
        embedded = add_and_norm(self._parts.embed(plan.tokens), None, layer.attention_norm, eps)
        # The layer adds to x in place.
        x = normed.clone() if self.config.norms_residual else hidden.clone()
        added = layer.run(x, torch.cat((embedded, normed), 1), 0, plan, attention)
        norm = self._norm if self.config.norms_output else None
        return add_and_norm(x, added, norm, eps, layer.down_norm, float(self.config.layer.scales.residual))

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, vocab_size] float32."""
        return self._parts.project(
            outputs if self.config.norms_output else add_and_norm(outputs, None, self._norm, self._eps)
        )
