"""A draft head learns from hidden states, in chains, and is served as it was trained."""

import contextlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.client import AsyncClient
from paceline.distillation.chains import Chains
from paceline.distillation.conversations import ChatFrame, Corpus, Question, Record, Style, read_shard
from paceline.distillation.draft_head import (
    further_head,
    new_head,
    require_head_target,
    require_own_form,
    save_head,
)
from paceline.distillation.loss import FrozenHead, HeadIndex
from paceline.distillation.trainer import Budget, Trainer, TrainingPlan
from paceline.distillation.writer import Writer
from paceline.engine.batch import BatchBuilder, TokenSpan
from paceline.engine.cpu.eagle3 import CpuEagle3
from paceline.engine.cpu.kernels.scalars import bits_of
from paceline.engine.cpu.llama import CpuLlama
from paceline.engine.cpu.paged_attention import CpuPagedAttention
from paceline.engine.models.draft_heads.loading import load_draft_head
from paceline.engine.models.weights import LoadedModel, load_model
from paceline.errors import ConfigError
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.distillation.test_distill import alphas, distill, gains
from tests.services import running, start_service

TOP, DEPTH, STATE_SIZE = 8, 3, 2.0
TAPS = (0, 1, 2)
FRAME = ChatFrame([11, 12, 13], [14, 15])
IDS = np.arange(512)


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    """A model of eight layers, so that EAGLE-3's own choice of three of them exists."""
    loaded = load_model("dummy:tiny", torch.float32)
    layers = {
        name.replace("layers.0.", f"layers.{index}.").replace("layers.1.", f"layers.{index + 1}."): tensor
        for index in range(0, 8, 2)
        for name, tensor in loaded.tensors.items()
    }
    return replace(loaded, config=replace(loaded.config, layers=loaded.config.layers * 4), tensors=layers)


@pytest.fixture(scope="module")
def records(target: LoadedModel) -> list[Record]:
    model = CpuLlama(target.config, dict(target.tensors), "none", 512)
    questions = [Question([20 + number, 30, 40], is_whole=True) for number in range(40)]
    styles = (Style(0.0, 1.0, 16), Style(0.8, 1.0, 16))
    return [record for _, record in Writer(model, FRAME, 8, TOP, 0, questions, 3, styles, (2, 4, 5)).records()]


def test_the_states_kept_are_those_of_a_pass_over_the_whole_text(target: LoadedModel, records: list[Record]) -> None:
    model = CpuLlama(target.config, dict(target.tensors), "none", 512)
    for record in records[:5]:
        num_read, attention, builder = len(record.tokens) - 1, model.make_cache(2, 64), BatchBuilder()
        builder.add(record.tokens[:num_read].tolist(), 0, [0, 1], [False] * num_read)
        batch = builder.build(model.padded(num_read))
        _, states = model.forward_with_states(batch, attention, attention.plan(batch.spans), (2, 4, 5))
        assert record.states is not None
        kept = torch.from_numpy(record.states[:num_read]).view(torch.bfloat16).float()
        expected = torch.stack([torch.from_numpy(each[:num_read]) for each in states], 1)
        torch.testing.assert_close(kept, expected, rtol=1e-2, atol=1e-2)
        assert len(record.states) == len(record.tokens)


def test_a_corpus_keeps_the_states(tmp_path: Path, records: list[Record]) -> None:
    corpus = Corpus(tmp_path)
    corpus.add(records[:7], 1.0)
    [shard] = corpus.shards
    read = list(read_shard(shard))
    assert all(np.array_equal(one.states, other.states) for one, other in zip(read, records, strict=False))
    assert np.array_equal(read[3].answer.states, records[3].states)


def chains(target: LoadedModel, depth: int = DEPTH) -> Chains:
    return Chains(target.tensors["model.embed_tokens.weight"], HeadIndex(IDS, 512), depth)


def test_training_teaches_whole_chains(target: LoadedModel, records: list[Record]) -> None:
    torch.manual_seed(0)
    head = FrozenHead(target.tensors["model.embed_tokens.weight"])
    plan = TrainingPlan(Budget(tokens=15_000), 512, 1e-2)
    trainer = Trainer(new_head(target, STATE_SIZE), head, chains(target), plan)
    before = [each.mean_alpha for each in trainer.agreement(records)]
    for _ in trainer.run(records):
        pass
    after = [each.mean_alpha for each in trainer.agreement(records)]
    assert len(after) == DEPTH
    assert all(late > 2.5 * early for early, late in zip(before, after, strict=True)), (before, after)


def test_what_was_trained_is_what_is_served(tmp_path: Path, target: LoadedModel, records: list[Record]) -> None:
    """A chain from every position: the module's outputs, and those of the engine one position after the other."""
    torch.manual_seed(1)
    trained = new_head(target, STATE_SIZE)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter += 0.3 * torch.randn_like(parameter) / parameter.shape[-1] ** 0.5
            # As the file keeps it.
            parameter.copy_(parameter.bfloat16())
    save_head(tmp_path, trained, target, IDS)
    loaded = load_draft_head(str(tmp_path), target.config, target.weights_fingerprint, torch.float32)
    embedding = target.tensors["model.embed_tokens.weight"]
    head = CpuEagle3(loaded, target.config, 512, "none", bits_of(embedding).__getitem__, embedding)
    record = records[0]
    assert record.states is not None
    states = torch.from_numpy(record.states).view(torch.bfloat16)[None, :-2].float()
    tokens = record.tokens.astype(np.int64)
    with torch.inference_mode():
        outputs = trained(embedding[torch.from_numpy(tokens[1:-1])][None], states, DEPTH)
        fused = head.fuse([bits_of(states[0, :, index].contiguous()) for index in range(3)])
        for first in range(len(fused) - DEPTH):
            attention = CpuPagedAttention(head.config.layer, 8, 8, np.dtype(np.float32), 1)
            before = np.concatenate([fused[:1], fused[: first + 1]])
            position, fed = 0, tokens[: first + 2]
            for depth in range(DEPTH):
                plan = attention.plan([TokenSpan(0, len(fed), position, list(range(8)))])
                before = head.forward(fed, before, attention, plan)[-1:]
                position += len(fed)
                # A chain of this depth that began at `first` ends `depth` positions on.
                expected = outputs[depth][0, first + depth] @ embedding.T
                torch.testing.assert_close(head.logits(before)[0], expected, rtol=1e-3, atol=1e-3)
                fed = tokens[position : position + 1]


def test_a_head_goes_on_where_it_was_saved(tmp_path: Path, target: LoadedModel) -> None:
    begun = new_head(target, STATE_SIZE)
    save_head(tmp_path, begun, target, IDS)
    loaded = load_draft_head(str(tmp_path), target.config, target.weights_fingerprint, torch.float32)
    assert {name: tuple(each.shape) for name, each in further_head(loaded).tensors.items()} == {
        name: tuple(each.shape) for name, each in begun.tensors.items()
    }
    require_own_form(loaded, (2, 4, 5))
    for other in (
        replace(loaded, config=replace(loaded.config, norms_residual=False)),
        replace(loaded, config=replace(loaded.config, taps=(1, 4, 5))),
        replace(loaded, tensors={**loaded.tensors, "lm_head.weight": torch.zeros(1)}),
    ):
        with pytest.raises(ConfigError, match="is not a head that `paceline distill --head` has made"):
            require_own_form(other, (2, 4, 5))


def test_a_target_of_another_kind_is_refused(target: LoadedModel) -> None:
    scaled = replace(target, config=replace(target.config, scales=replace(target.config.scales, residual=0.5)))
    with pytest.raises(ConfigError, match="heads are trained for 'llama'"):
        require_head_target(scaled)
    with pytest.raises(ConfigError, match="has 6 layers; a head reads three of at least 7"):
        require_head_target(replace(target, config=replace(target.config, layers=target.config.layers[:6])))
    require_head_target(target)


# Few tokens, seen often: enough to tell learning from none.
SMALL = ("--head", "--tokens", "30000", "--corpus-tokens", "8000", "--head-size", "8192", "--concurrency", "64")


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_distilled_head_agrees_more_and_serves(tmp_path: Path) -> None:
    work = tmp_path / "work"
    done = distill(work, *SMALL)
    assert done.returncode == 0, done.stderr
    assert min(gains(work, "alpha", "alpha_2", "alpha_3")) > 2
    assert "--head --depth 3" in (work / "draft" / "README.md").read_text()
    trained = alphas(work)[-1]
    # A folder goes on from the head: what it knows at once is what the head knew, but for bfloat16.
    (tmp_path / "more").mkdir()
    (work / "corpus").rename(tmp_path / "more" / "corpus")
    further = distill(tmp_path / "more", *SMALL, "--tokens", "1000", "--init-from", str(work / "draft"))
    assert further.returncode == 0, further.stderr
    assert alphas(tmp_path / "more")[0] > trained - 0.02
    flags = ("--model", "smollm2-135m", "--draft-head", str(work / "draft"))
    with contextlib.ExitStack() as stack:
        server = start_service("target_server", tmp_path, *flags)
        stack.enter_context(running(server))
        coordinator = start_service("coordinator", tmp_path, "--draft", "none", "--target", server.address)
        stack.enter_context(running(coordinator))
        sampling = SamplingParams(max_tokens=60)
        async with AsyncClient(coordinator.address) as client:
            plain, drafted = [
                await client.complete("Why is the sky blue?", sampling, each)
                for each in (
                    SpeculationParams(enabled=False),
                    SpeculationParams(drafter=Drafter.HEAD, num_speculative_tokens=3),
                )
            ]
    assert drafted.token_ids == plain.token_ids
    assert drafted.finish.speculation.accepted > 0
