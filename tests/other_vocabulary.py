"""A tiny target, and drafts of it with other tokenizers, whose embeddings are the target's where the tokens are."""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from paceline.engine.models.dummy import dummy_config, dummy_tokenizer_files, make_dummy
from tests.byte_level import SPECIAL, write_byte_level_model
from tests.model_folder import change_config

# Another text than the target's tokenizer was trained on: some tokens are the same.
OTHER_TEXT = (
    "Elodie said twice: these words are the same words again and again. def main(): return [word for word in 東京]\n"
)
EMBEDDING = "model.embed_tokens.weight"


def write_target(folder: Path) -> None:
    """All of its ids are tokens."""
    write_byte_level_model(folder)
    num_ids = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    tensors = load_file(folder / "model.safetensors")
    tensors[EMBEDDING] = tensors[EMBEDDING][:num_ids].contiguous()
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, vocab_size=num_ids)


def write_renumbered(target: Path, folder: Path) -> None:
    """The same model with other ids: it agrees with the target in everything."""
    written = json.loads((target / "tokenizer.json").read_text())
    vocabulary = written["model"]["vocab"]
    ids = random.Random(0).sample(sorted(vocabulary.values()), len(vocabulary))
    renumbered = dict(zip(vocabulary, ids, strict=True))
    written["model"]["vocab"] = renumbered
    for token in written["added_tokens"]:
        token["id"] = renumbered[token["content"]]
    written["added_tokens"].sort(key=lambda token: token["id"])
    for token in written["post_processor"]["special_tokens"].values():
        token["ids"] = [renumbered[each] for each in token["tokens"]]
    _write(target, folder, json.dumps(written))


def write_other(target: Path, folder: Path) -> None:
    """A tokenizer that was trained on another text; it adds no token at the beginning."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=[SPECIAL[2], SPECIAL[0]],
        show_progress=False,
    )  # fmt: skip
    backend.train_from_iterator([OTHER_TEXT] * 3, trainer)
    _write(target, folder, backend.to_str())


def write_words(folder: Path) -> None:
    """dummy:tiny-32-b with other ids for the words of dummy:tiny-32-a, of which it lacks every eighth."""
    config, (_, tensors) = dummy_config("tiny-32-b"), make_dummy("tiny-32-b", torch.float32)
    ids = random.Random(0).sample(range(config.vocab_size), config.vocab_size)
    folder.mkdir()
    config.save_pretrained(folder)
    tensors[EMBEDDING] = tensors[EMBEDDING][torch.tensor(ids).argsort()]
    save_file(tensors, folder / "model.safetensors")
    for name, data in dummy_tokenizer_files(config.vocab_size).items():
        (folder / name).write_bytes(data)
    written = json.loads((folder / "tokenizer.json").read_text())
    written["model"]["vocab"] = {("u" if word % 8 == 7 else "t") + str(word): id for word, id in enumerate(ids)}
    (folder / "tokenizer.json").write_text(json.dumps(written))
    change_config(folder, eos_token_id=ids[0])


def _write(target: Path, folder: Path, tokenizer_json: str) -> None:
    folder.mkdir()
    for file in ("config.json", "tokenizer_config.json"):
        (folder / file).write_bytes((target / file).read_bytes())
    (folder / "tokenizer.json").write_text(tokenizer_json)
    theirs, ours = (Tokenizer.from_file(str(each / "tokenizer.json")).get_vocab() for each in (target, folder))
    tensors = load_file(target / "model.safetensors")
    embedding = tensors[EMBEDDING]  # [vocab_size, hidden_size]
    tensors[EMBEDDING] = 0.25 * torch.randn(len(ours), embedding.shape[1], generator=torch.Generator().manual_seed(1))
    for token in ours.keys() & theirs.keys():
        tensors[EMBEDDING][ours[token]] = embedding[theirs[token]]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    change_config(folder, eos_token_id=ours[SPECIAL[0]], vocab_size=len(ours))
