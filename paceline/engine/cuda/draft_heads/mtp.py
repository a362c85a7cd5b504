"""An MTP head on a GPU (see `models.mtp`): the layer's modules over our cache, as the target's are."""

from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional

from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.modules_model import CudaMatrix, CudaModules, PagedStep, scoring_of
from paceline.engine.cuda.paged_attention import CudaPagedAttention, require_head_dim
from paceline.engine.cuda.products import make_cuda_linear
from paceline.engine.head_drafting import FIRST_POSITION
from paceline.engine.models.mtp import LoadedMtp
from paceline.engine.models.shapes import Weight
from paceline.engine.modules.build import build_decoder, norm_like
from paceline.engine.modules.probe import probe_layer, run_decoder


class CudaMtp:
    def __init__(self, head: LoadedMtp, target: CudaModules, quantization: str, device: torch.device) -> None:
        """Takes the tensors out of `head`. Raises ConfigError if the engine can't run its layer."""
        tensors, source, dtype = head.tensors, head.source, target.dtype
        self._target, self._device, self._dtype = target, device, dtype
        # Drafts change no output, so the bits of a row may depend on the others.
        make = partial(make_cuda_linear, quantization=quantization, batch_invariant=False, device=device)

        def make_matrix(weight: Weight, bias: torch.Tensor | None, is_looked_up: bool) -> CudaMatrix:
            assert isinstance(weight, torch.Tensor), "GGUF files have no head"
            return CudaMatrix(make(weight, bias), None)

        fusion, rows = tensors.pop("fc.weight"), tensors.pop("lm_head.weight", None)
        embedding = tensors.pop("embed_tokens.weight", None)
        norms = [tensors.pop(f"{name}.weight").to(dtype) for name in ("embedding_norm", "hidden_norm")]
        self._decoder = build_decoder(source, tensors, dtype, make_matrix).to(device)
        self._form = probe_layer(self._decoder, device)
        require_head_dim(self._form.head_dim)
        self._scoring = replace(scoring_of(self._form, device), first=FIRST_POSITION)
        self.hidden_size: int = source.hidden_size
        # After the final norm.
        self.after: tuple[int, ...] = (target.config.source.num_hidden_layers + 1,)
        self._embedding_norm, self._hidden_norm = (norm_like(self._decoder, weight.to(device)) for weight in norms)
        self._embedding = None if embedding is None else embedding.to(device, dtype)
        self._fuse = make(fusion.to(dtype), None)
        self._output = None if rows is None else make(rows.to(dtype), None)

    def make_cache(self, num_blocks: int, block_size: int) -> CudaPagedAttention:
        form = self._form
        return CudaPagedAttention(
            1, num_blocks, block_size, form.num_kv_heads, form.head_dim, self._dtype, self._device
        )

    def fuse(self, states: list[torch.Tensor]) -> torch.Tensor:
        """Returns what the head reads of the target: its hidden state after the final norm, [num_rows, hidden_size]."""
        [state] = states
        return state

    def forward(self, plan: ForwardPlan, hidden: torch.Tensor, attention: CudaPagedAttention) -> torch.Tensor:
        """Runs the layer. Returns what the following token's row reads: [num_rows, hidden_size].

        hidden: what each row reads of the position before it, [num_rows, hidden_size].
        """
        own = self._embedding
        embedded = self._target.embed(plan.tokens) if own is None else functional.embedding(plan.tokens, own)
        row = self._fuse(torch.cat((self._embedding_norm(embedded), self._hidden_norm(hidden)), 1))
        step = PagedStep({0: self._scoring}, attention, plan)
        return run_decoder(self._decoder, row, plan.positions.clamp_min(0).long(), step)

    def logits(self, outputs: torch.Tensor) -> torch.Tensor:
        """outputs: rows of `forward` -> [num_rows, vocab_size] float32."""
        return self._target.project(outputs) if self._output is None else self._output(outputs).float()
