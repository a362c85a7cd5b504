"""Folders with a tiny random model, for tests that change something in it."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from paceline.engine.models.dummy import dummy_config, dummy_tokenizer_files, make_dummy


def write_model(folder: Path, **changes: object) -> None:
    """A model that can be loaded. `changes`: to its config."""
    config = dummy_config("tiny")
    config.save_pretrained(folder)
    save_file(make_dummy("tiny", torch.float32)[1], folder / "model.safetensors")
    for name, data in dummy_tokenizer_files(config.vocab_size).items():
        (folder / name).write_bytes(data)
    change_config(folder, **changes)


def change_config(folder: Path, **changes: object) -> None:
    change_json(folder / "config.json", **changes)


def change_json(path: Path, **changes: object) -> None:
    """The file may be a new one."""
    path.write_text(json.dumps((json.loads(path.read_text()) if path.exists() else {}) | changes))
