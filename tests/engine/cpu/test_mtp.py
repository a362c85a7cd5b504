"""MTP heads against transformers' own (`MtpModel`): it reads the same checkpoint, and attends without a cache, in float32."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.modeling_layers import MtpModel

from paceline.engine.arrays import Array
from paceline.engine.batch import BatchBuilder, TokenSpan
from paceline.engine.cache.state_pool import StateSpan
from paceline.engine.cpu.modules_model import CpuModules
from paceline.engine.cpu.mtp import CpuMtp
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.models.mtp import load_mtp
from paceline.engine.models.weights import load_model
from tests.engine.cpu.test_architectures import SHAPE, TOKENS, VOCAB_SIZE
from tests.engine.cpu.test_llama import MAX_RELATIVE_ERROR, relative_error
from tests.mtp_models import MTP_MODELS, write_mtp

BLOCK_SIZE, NUM_BLOCKS = 8, 4
BLOCKS = [2, 0, 3, 1]
LENGTH, NUM_STEPS = 24, 4
# Of the largest logit, in float32. The head reads the oracle's own states.
MAX_ERROR = 1e-5
# Last positions that the target has read when a chain begins: at the start, in a block and at its ends.
STARTS = [0, 1, 6, 7, 8, 15, 18]


@pytest.fixture(scope="module", params=MTP_MODELS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    write_mtp(folder, request.param)
    return folder


class Oracle:
    """transformers' target and head."""

    def __init__(self, folder: Path) -> None:
        self._model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
        config = self._model.config
        config.num_mtp_layers = 1
        config.mtp_layer_types, config.mtp_mlp_layer_types = ["full_attention"], ["sparse"]
        # It knows the layer by its number in published models alone.
        self._model._keys_to_ignore_on_load_unexpected = [r"^mtp.*", rf"model\.layers\.{config.num_hidden_layers}.*"]
        self._head = MtpModel.from_pretrained(self._model)

    @torch.inference_mode()
    def states(self, tokens: list[int]) -> torch.Tensor:
        """Hidden states after the final norm: [num_tokens, hidden_size]."""
        return self._model.get_decoder()(torch.tensor([tokens])).last_hidden_state[0]

    @torch.inference_mode()
    def layer_states(self, tokens: list[int]) -> list[torch.Tensor]:
        """After the embedding and each layer, the last one's normed: [num_tokens, hidden_size] each."""
        output = self._model(torch.tensor([tokens]), output_hidden_states=True)
        return [each[0] for each in output.hidden_states]

    @torch.inference_mode()
    def chain(self, tokens: list[int], first: int, states: torch.Tensor | None = None) -> list[torch.Tensor]:
        """The logits of each step, [vocab_size], after the target has read the tokens up to the position `first`.

        states: another target's.
        """
        hidden, logits = list((self.states(tokens) if states is None else states)[: first + 1]), []
        for step in range(NUM_STEPS):
            end = first + 1 + step
            # All rows again: those of the positions 1 to `end`.
            output = self._head.forward_layer(
                0, torch.stack(hidden)[None], torch.arange(1, end + 1)[None], None, torch.tensor([tokens[1 : end + 1]])
            )[0, -1]
            hidden.append(output)
            logits.append(self._head._project_to_logits(output))
        return logits


class Ours:
    def __init__(self, folder: Path) -> None:
        loaded = load_model(str(folder), torch.float32, implementation="transformers")
        head = load_mtp("it", loaded.config.source, loaded.mtp, loaded.tensors, loaded.weights_fingerprint)
        self.model = CpuModules(loaded.config, loaded.tensors, torch.float32, "none", loaded.config.max_model_len)
        self.head = CpuMtp(head, self.model, torch.float32, "none")

    @torch.inference_mode()
    def states(self, tokens: list[int], after: Any) -> list[Array]:
        cache = self.model.make_cache(NUM_BLOCKS, BLOCK_SIZE)
        builder = BatchBuilder()
        builder.add(tokens, 0, BLOCKS, [True] * len(tokens), StateSpan(0, 0, 0, 0, 0))
        batch = builder.build(len(tokens))
        rows, states = self.model.forward_with_states(batch, cache, cache.plan(batch.spans), after)
        plain = self.model.forward(batch, self.model.make_cache(NUM_BLOCKS, BLOCK_SIZE), cache.plan(batch.spans))
        assert torch.equal(rows, plain)
        return states

    @torch.inference_mode()
    def chain(
        self, tokens: list[int], first: int, states: torch.Tensor, sizes: tuple[int, ...] = ()
    ) -> list[torch.Tensor]:
        """As the oracle's, over a cache. states: the oracle's; sizes: of the parts in which the head reads them."""
        attention = CpuPagedAttention(self.head.kv_shape, NUM_BLOCKS, BLOCK_SIZE, np.dtype(np.float32), 1)

        def feed(position: int, hidden: Array) -> Array:
            plan = attention.plan([TokenSpan(0, len(hidden), position, BLOCKS)])
            of_rows = np.array(tokens[position : position + len(hidden)])
            return self.head.forward(of_rows, hidden, attention, plan)

        fused = self.head.fuse([states[: first + 1].numpy()])
        # Position 0 has none before it. It is read as well, and never attended to.
        before = np.concatenate([np.full_like(fused[:1], 7.0), fused])
        done, output = 0, before
        for size in (*sizes, len(before) - sum(sizes)):
            done, output = done + size, feed(done, before[done : done + size])
        output, logits = output[-1:], []
        for step in range(NUM_STEPS):
            if step:
                output = feed(first + 1 + step, output)
            logits.append(self.head.logits(output)[0])
        return logits


oracle_of, ours_of = cache(Oracle), cache(Ours)


@pytest.mark.parametrize("first", STARTS)
def test_chains_are_transformers_own(folder: Path, first: int) -> None:
    tokens, oracle = TOKENS[:LENGTH], oracle_of(folder)
    ours = ours_of(folder).chain(tokens, first, oracle.states(tokens))
    for mine, theirs in zip(ours, oracle.chain(tokens, first), strict=True):
        assert relative_error(mine, theirs) < MAX_ERROR


def test_a_head_may_have_its_own_embedding_and_output_rows(tmp_path: Path) -> None:
    own = torch.randn(2, VOCAB_SIZE, SHAPE["hidden_size"], generator=torch.Generator().manual_seed(9)) * 0.2
    names = "embed_tokens.weight", "shared_head.head.weight"
    write_mtp(
        tmp_path / "own", "glm4_moe", {f"model.layers.4.{name}": each for name, each in zip(names, own, strict=True)}
    )
    # The same head, whose target has these rows.
    write_mtp(tmp_path / "lent", "glm4_moe")
    stored = load_file(tmp_path / "lent" / "model.safetensors")
    stored |= {"model.embed_tokens.weight": own[0].clone(), "lm_head.weight": own[1].clone()}
    save_file(stored, tmp_path / "lent" / "model.safetensors", {"format": "pt"})
    tokens, states = TOKENS[:LENGTH], Oracle(tmp_path / "own").states(TOKENS[:LENGTH])
    theirs = Oracle(tmp_path / "lent").chain(tokens, 8, states)
    for mine, expected in zip(Ours(tmp_path / "own").chain(tokens, 8, states), theirs, strict=True):
        assert relative_error(mine, expected) < MAX_ERROR


def test_what_is_read_in_parts_is_read_alike(folder: Path) -> None:
    tokens, ours = TOKENS[:LENGTH], ours_of(folder)
    states = oracle_of(folder).states(tokens)
    whole = ours.chain(tokens, 18, states)
    for sizes in ((1,), (3, 5), (8, 8, 1)):
        for mine, expected in zip(ours.chain(tokens, 18, states, sizes), whole, strict=True):
            assert relative_error(mine, expected) < MAX_ERROR


def test_hidden_states_are_transformers_own(folder: Path) -> None:
    tokens = TOKENS[:LENGTH]
    *layers, normed = oracle_of(folder).layer_states(tokens)
    ours = ours_of(folder)
    found = ours.states(tokens, [*range(len(layers)), *ours.head.after])
    for mine, theirs in zip(found, [*layers, normed], strict=True):
        assert relative_error(torch.from_numpy(mine), theirs) < MAX_RELATIVE_ERROR
    (unnormed,) = ours.states(tokens, [len(layers)])
    assert relative_error(torch.from_numpy(unnormed), normed) > 0.1
