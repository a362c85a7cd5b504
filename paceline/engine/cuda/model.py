"""The decoder forward on a GPU, over a flat batch, for the same models as `cpu.llama`."""

from functools import partial

import torch
from torch.nn import functional

from paceline.engine.cuda.forward_plan import ForwardPlan
from paceline.engine.cuda.paged_attention import CudaPagedAttention
from paceline.engine.cuda.products import CudaLinear, make_cuda_linear
from paceline.engine.cuda.rows import Rotation, add_and_norm, rotate_and_place, silu_gate
from paceline.engine.models.config import UNKNOWN_LOGIT, ModelConfig
from paceline.engine.models.rope import rope_tables
from paceline.engine.models.shapes import HEAD_IDS, Tensors, check_shapes, fused, with_masks


class CudaLayer:
    def __init__(
        self,
        tensors: Tensors,
        prefix: str,
        config: ModelConfig,
        make: partial[CudaLinear],
        rope: tuple[torch.Tensor, torch.Tensor],
    ) -> None:
        device = rope[0].device

        def linear(*names: str) -> CudaLinear:
            return make(*fused(tensors, prefix, *names))

        def norm(name: str) -> torch.Tensor:  # [hidden_size] float32
            return tensors.pop(f"{prefix}{name}.weight").float().to(device)

        def head_norm(name: str) -> torch.Tensor | None:  # Qwen3 only: [head_dim] float32
            weight = tensors.pop(f"{prefix}{name}.weight", None)
            return None if weight is None else weight.float().to(device)

        self.attention_norm = norm("input_layernorm")
        self.qkv = linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.output = linear("self_attn.o_proj")
        self.mlp_norm = norm("post_attention_layernorm")
        self.gate_up = linear("mlp.gate_proj", "mlp.up_proj")
        self.down = linear("mlp.down_proj")
        norms = head_norm("self_attn.q_norm"), head_norm("self_attn.k_norm")
        self.rotation = Rotation(*rope, *norms, config.norm_eps)


class CudaLlama:
    def __init__(
        self, config: ModelConfig, tensors: Tensors, quantization: str, max_model_len: int, batch_invariant: bool,
        device: torch.device,
    ) -> None:  # fmt: skip
        """Moves the tensors to the GPU one by one. Raises ConfigError if one is missing or has a wrong shape."""
        self.config = config
        self.max_model_len = max_model_len
        check_shapes(config, tensors)
        make = partial(make_cuda_linear, quantization=quantization, batch_invariant=batch_invariant, device=device)
        cos, sin = (table.to(device) for table in rope_tables(config, max_model_len))
        embedding = tensors["model.embed_tokens.weight"]
        # [vocab_size + num_masks, hidden_size]
        self._embedding = with_masks(embedding, tensors).to(device)
        head = embedding if config.tied_embeddings else tensors.pop("lm_head.weight")
        ids = tensors.pop(HEAD_IDS, None)  # [head_size], only in distilled drafts
        self._head_ids = None if ids is None else ids.long().to(device)
        shared = self._embedding[: config.vocab_size] if config.tied_embeddings else head
        self._head = make(shared if ids is None else head[ids.long()], None)
        self.layers = [
            CudaLayer(tensors, f"model.layers.{i}.", config, make, (cos, sin)) for i in range(config.num_layers)
        ]
        self._norm = tensors.pop("model.norm.weight").float().to(device)  # [hidden_size]

    @property
    def num_bytes(self) -> int:
        return sum(each.num_bytes for each in self._products)

    @property
    def _products(self) -> list[CudaLinear]:
        of_layers = [each for layer in self.layers for each in (layer.qkv, layer.output, layer.gate_up, layer.down)]
        return [*of_layers, self._head]

    def forward(self, plan: ForwardPlan, attention: CudaPagedAttention, out: torch.Tensor) -> torch.Tensor:
        """Writes the plan's tokens to the cache, and the wanted logits to out: [num_wanted, vocab_size] float32."""
        eps = self.config.norm_eps
        x = functional.embedding(plan.tokens, self._embedding)  # [num_rows, hidden_size]
        added = None
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(add_and_norm(x, added, layer.attention_norm, eps))
            qkv = qkv.view(x.shape[0], -1, self.config.head_dim)
            keys, values = attention.keys[index], attention.values[index]
            queries = rotate_and_place(qkv, plan.positions, plan.slots, layer.rotation, keys, values)
            mixed = attention.attend(index, queries, plan)
            added = layer.output(mixed.view(x.shape[0], -1))
            gate_up = layer.gate_up(add_and_norm(x, added, layer.mlp_norm, eps))
            added = layer.down(silu_gate(gate_up))
        assert added is not None, "a model has layers"
        wanted = plan.wanted
        logits = self._head(add_and_norm(x[wanted], added[wanted], self._norm, eps))
        if self._head_ids is None:
            return out.copy_(logits)
        return out.fill_(UNKNOWN_LOGIT).index_copy_(1, self._head_ids, logits.float())

    def new_logits(self, num_rows: int) -> torch.Tensor:
        """Returns an uninitialised [num_rows, vocab_size] float32 for `forward`."""
        return torch.empty((num_rows, self.config.vocab_size), device=self._embedding.device)
