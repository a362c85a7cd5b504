"""`paceline distill` from a target's name to a draft that serves, in about a minute."""

import csv
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from paceline.client import AsyncClient
from paceline.engine.models.weights import load_model
from paceline.sampling_params import SamplingParams
from paceline.speculation_params import Drafter, SpeculationParams
from tests.services import start_trio

PACELINE = "from paceline.cli import main; main()"
TARGET = "smollm2-135m"
# Few tokens, seen often: a minute is enough to tell learning from none, not to make a good draft.
SMALL = ("--layers", "2", "--tokens", "60000", "--corpus-tokens", "15000", "--head-size", "8192", "--concurrency", "64")


# A model of its own, of another width than the target: it keeps its embedding and head, as long as rows of a trained model
# are, or no hidden state could say much by them.
NARROW = {
    "initializer_range": 0.125,
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 49152, "max_position_embeddings": 2048, "tie_word_embeddings": True,
}  # fmt: skip


def distill(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PACELINE, "distill", "--target", TARGET, "--out", str(folder), *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def alphas(folder: Path) -> list[float]:
    with open(folder / "curve.csv", newline="") as file:
        return [float(row["alpha"]) for row in csv.DictReader(file)]


def gains(folder: Path, *names: str) -> list[float]:
    """The curve's last row in parts of its first, in these columns."""
    with open(folder / "curve.csv", newline="") as file:
        first, *_, last = csv.DictReader(file)
    return [float(last[name]) / float(first[name]) for name in names]


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run. Writing the corpus takes most of its time, so another test copies it."""
    folder = tmp_path_factory.mktemp("distilled")
    held_out = folder / "held_out.jsonl"
    held_out.write_text('{"turns": ["Why is the sky blue?"], "category": "science"}\n{"prompt": "Name a color."}\n')
    done = distill(folder / "work", *SMALL, "--eval-prompts", str(held_out))
    assert done.returncode == 0, done.stderr
    assert "science" in done.stdout
    return folder / "work"


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_distilled_draft_agrees_more_and_serves(distilled: Path, tmp_path: Path) -> None:
    folder = distilled
    untrained, *_, trained = alphas(folder)
    assert trained > untrained + 0.1
    assert (folder / "curve.png").stat().st_size > 1000
    assert "science" in (folder / "draft" / "README.md").read_text()
    # What was done is done: the second time there is nothing left to do.
    again = distill(folder, *SMALL)
    assert again.returncode == 0, again.stderr
    assert alphas(folder)[-1] == trained
    # Another folder goes on from the draft: what it knows at once is what the draft knew, int8 aside.
    more = tmp_path / "more"
    shutil.copytree(folder / "corpus", more / "corpus")
    further = distill(more, *SMALL, "--tokens", "2000", "--init-from", str(folder / "draft"))
    assert further.returncode == 0, further.stderr
    assert alphas(more)[0] > trained - 0.02
    params = SamplingParams(max_tokens=48, ignore_eos=True)
    drafted = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=2)
    flags = ("--dtype", "bfloat16", "--max-model-len", "1024", "--kv-cache-memory", "64MiB")
    draft = ("--model", str(folder / "draft"), "--quantization", "int8", *flags)
    with start_trio(tmp_path, ("--model", TARGET, *flags), draft) as trio:
        async with AsyncClient(trio.address) as client:
            speculative = await client.complete("Why is the sky blue?", params, drafted)
            plain = await client.complete("Why is the sky blue?", params, SpeculationParams(enabled=False))
    assert speculative.token_ids == plain.token_ids
    assert speculative.finish is not None
    assert speculative.finish.speculation.accepted > 0


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_model_of_its_own_learns_to_draft_in_one_forward_and_serves(distilled: Path, tmp_path: Path) -> None:
    """The recipe for a smaller model of the target's family, for a few steps."""
    narrow, folder = tmp_path / "narrow", tmp_path / "work"
    narrow.mkdir()
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**NARROW)).to(torch.bfloat16).save_pretrained(narrow)
    for name, data in load_model(TARGET, torch.bfloat16).tokenizer_files.items():
        (narrow / name).write_bytes(data)
    shutil.copytree(distilled / "corpus", folder / "corpus")
    few = ("--init-from", str(narrow), "--layers", "2", "--masks", "3", "--corpus-tokens", "15000", "--tokens", "40000")
    done = distill(folder, *few, "--head-size", "2048", "--learning-rate", "0.005", "--batch-tokens", "512")
    assert done.returncode == 0, done.stderr
    # It has learned which tokens are frequent, at each place: 1.7 to 2.7 times as likely to agree as untrained.
    assert min(gains(folder, "alpha", "alpha_2", "alpha_3", "alpha_4")) > 1.3
    flags = ("--dtype", "bfloat16", "--max-model-len", "1024", "--kv-cache-memory", "64MiB")
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    drafted = SpeculationParams(drafter=Drafter.MODEL, num_speculative_tokens=4)
    with start_trio(tmp_path, ("--model", TARGET, *flags), ("--model", str(folder / "draft"), *flags)) as trio:
        async with AsyncClient(trio.address) as client:
            speculative = await client.complete("Why is the sky blue?", params, drafted, trace=True)
            plain = await client.complete("Why is the sky blue?", params, SpeculationParams(enabled=False))
    assert speculative.token_ids == plain.token_ids
    assert max(len(trace.proposed) for trace in speculative.traces) == 4
