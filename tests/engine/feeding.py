"""Drives a model's forward pass as the runner does, and hands back the logits of every row."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch

from paceline.engine.batch import BatchBuilder
from paceline.engine.cache.recurrent_sequence import LOG_TOKENS
from paceline.engine.cache.state_pool import StateSpan
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.modules_model import CpuModules
from paceline.engine.cpu.paged_attention import CACHE_DTYPES
from paceline.engine.cpu.runner import CpuModel
from paceline.engine.models.model_config import ModelConfig
from paceline.engine.models.shapes import Tensors
from paceline.engine.models.weights import load_model

EMBEDDINGS = "model.embed_tokens.weight"


def load_part(
    name: str, dtype: torch.dtype, num_layers: int | None = None, num_words: int | None = None, in_place: bool = False
) -> tuple[ModelConfig, Tensors]:
    """A model's first layers, and the first words of one with tied embeddings; None: all."""
    loaded = load_model(name, dtype, in_place=in_place)
    config = loaded.config
    config = replace(config, layers=config.layers[:num_layers], vocab_size=num_words or config.vocab_size)
    tensors = {
        key: tensor
        for key, tensor in loaded.tensors.items()
        if not key.startswith("model.layers.") or int(key.split(".")[2]) < config.num_layers
    }
    if num_words:
        tensors[EMBEDDINGS] = tensors[EMBEDDINGS][:num_words]
    return config, tensors


def load_llama(
    name: str,
    dtype: torch.dtype = torch.float32,
    quantization: str = "none",
    max_model_len: int | None = None,
    num_layers: int | None = None,
    num_words: int | None = None,
    cache: str | None = None,
    in_place: bool = False,
) -> CpuLlama:
    """A model as the engine builds it, by folder or name. `num_layers`, `num_words`: see `load_part`; `cache`: its dtype;
    `in_place`: see `load_model`."""
    config, tensors = load_part(name, dtype, num_layers, num_words, in_place)
    cache_dtype = None if cache is None else CACHE_DTYPES[cache]
    return CpuLlama(
        config,
        tensors,
        quantization,
        max_model_len or config.max_model_len,
        batch_invariant=True,
        cache_dtype=cache_dtype,
    )


def load_modules(
    name: str, dtype: torch.dtype = torch.float32, quantization: str = "none", in_place: bool = False
) -> CpuModules:
    """A model with transformers' modules, as the engine builds it. `in_place`: see `load_model`."""
    loaded = load_model(name, dtype, in_place=in_place, implementation="transformers")
    return CpuModules(loaded.config, loaded.tensors, dtype, quantization, loaded.config.max_model_len)


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive tokens of one sequence, to be fed at `position`."""

    tokens: list[int]
    position: int
    blocks: list[int]


class Feeder:
    """A model with a cache of its own."""

    def __init__(self, model: CpuModel, num_blocks: int = 64, block_size: int = 64) -> None:
        self.num_blocks = num_blocks
        self._model = model
        self._attention = model.make_cache(num_blocks, block_size)
        self.copy_blocks = self._attention.copy_blocks
        # By a sequence's first block: what its state holds, if the model has recurrent layers.
        self._states: dict[int, StateSpan] = {}

    @torch.inference_mode()
    def feed(self, *shares: Rows) -> list[torch.Tensor]:
        """One forward pass over all shares; returns each one's logits: [num_tokens, vocab_size]."""
        builder = BatchBuilder()
        for share in shares:
            state = self._advance(share) if self._attention.states.num_slots else None
            builder.add(share.tokens, share.position, share.blocks, [True] * len(share.tokens), state)
        batch = builder.build(self._model.padded(builder.num_tokens))
        plan = self._attention.plan(batch.spans)
        logits = self._model.logits(self._model.forward(batch, self._attention, plan))
        return list(logits.split([len(share.tokens) for share in shares]))

    def _advance(self, share: Rows) -> StateSpan:
        """Takes the rows before `share` for decided."""
        last = self._states.get(share.blocks[0])
        slot, base = (len(self._states), 0) if last is None else (last.slot, last.new_base)
        new_base = max(base, share.position, share.position + len(share.tokens) - LOG_TOKENS)
        self._states[share.blocks[0]] = StateSpan(slot, base, new_base, 0, slot)
        return self._states[share.blocks[0]]

    def feed_split(self, tokens: list[int], sizes: Iterable[int], position: int = 0) -> torch.Tensor:
        """One sequence alone, `sizes` rows at a time: [num_tokens, vocab_size]."""
        parts = []
        blocks = list(range(self.num_blocks))
        for size in sizes:
            start = sum(part.shape[0] for part in parts)
            chunk = tokens[start : start + size]
            parts += self.feed(Rows(chunk, position + start, blocks))
        return torch.cat(parts)
