"""Distils a target into a draft head: as into a draft model, from text that is kept with the target's hidden states."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.distillation.batches import product_dtype
from paceline.distillation.chains import Chains
from paceline.distillation.conversations import Corpus, Record, read_shard, read_tokenizer
from paceline.distillation.draft_head import (
    DraftHead,
    further_head,
    new_head,
    require_head_target,
    require_own_form,
    save_head,
)
from paceline.distillation.loss import FrozenHead, HeadIndex
from paceline.distillation.run import Distillation
from paceline.distillation.trainer import Trainer
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.models.consistency import EMBEDDING, HEAD
from paceline.engine.models.draft_heads.eagle3 import Eagle3Config, usual_taps
from paceline.engine.models.draft_heads.head import LoadedDraftHead
from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.shapes import as_tensor
from paceline.errors import ConfigError

# Written tokens from whose hidden states the size is taken that the new head's layer begins with.
MEASURED_TOKENS = 10_000


@dataclass(slots=True)
class HeadDistillation(Distillation):
    """The target is loaded as it is served: heads read the states of quantized layers."""

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        require_head_target(self.target)
        self._given()
        self._lender = self.target
        self.corpus = Corpus(self.folder / "corpus")
        self._tokenizer = read_tokenizer(self.target.tokenizer_files)
        if len(self._frame().before) < 2:
            raise ConfigError(f"target {self.target.name!r}: its chat template begins with fewer than two tokens")
        if any(record.states is None for shard in self.corpus.shards[:1] for record in read_shard(shard)):
            raise ConfigError(f"{self.folder} has a corpus without hidden states; choose another folder")

    @property
    def _taps(self) -> Sequence[int]:
        return usual_taps(self.target.config.num_layers)

    def _trainer(self, head_ids: NDArray[np.int64]) -> Trainer:
        config, target, dtype = self.config, self.target, product_dtype(self.config.device)
        tied = target.config.tied_embeddings
        embedding = as_tensor(target.tensors[EMBEDDING], dtype) * target.config.scales.embedding
        rows = as_tensor(target.tensors[EMBEDDING if tied else HEAD], dtype)[torch.from_numpy(head_ids)]
        head = FrozenHead((rows * target.config.scales.logit).to(config.device))
        index = HeadIndex(head_ids, target.config.vocab_size)
        objective = Chains(embedding, index, config.depth, config.device)
        given = self._given()
        beginning = new_head(self.target, self._state_size()) if given is None else further_head(given)
        return Trainer(beginning.to(config.device), head, objective, config.plan, config.device)

    def _given(self) -> LoadedDraftHead[Eagle3Config] | None:
        """Returns the head to train further, if there is one."""
        target, name = self.target, self.config.init_from
        if name == self.config.target:
            return None
        given = load_draft_head(name, target.config, target.weights_fingerprint, torch.float32)
        require_own_form(given, self._taps)
        return given

    def _head_ids(self, records: Sequence[Record]) -> NDArray[np.int64]:
        given = self._given()
        return Distillation._head_ids(self, records) if given is None else given.ids

    def _state_size(self) -> float:
        """Returns the median root mean square of the highest hidden states, at tokens that the target wrote."""
        found: list[torch.Tensor] = []
        for record in read_shard(self.corpus.shards[0]):
            assert record.states is not None, "it was written for a head"
            highest = torch.from_numpy(record.states[record.written[:-1], -1]).view(torch.bfloat16)
            found.append(highest.float().square().mean(-1).sqrt())
            if sum(map(len, found)) > MEASURED_TOKENS:
                break
        return float(torch.cat(found).median())

    def _save(self, trainer: Trainer, head_ids: NDArray[np.int64]) -> None:
        assert isinstance(trainer.backbone, DraftHead)
        save_head(self.folder / "draft", trainer.backbone, self.target, head_ids)

    def _model(self) -> CpuLlama:
        return CpuLlama(self.target.config, dict(self.target.tensors), "auto", self.target.config.max_model_len)
