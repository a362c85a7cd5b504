"""A model's fingerprint depends on every byte of its weights."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from paceline.engine.models.weights import load_model
from tests.byte_level import write_byte_level_model

# Behind the first MiB.
MANY = 1 << 20


def fingerprint(folder: Path, last: float) -> str:
    """Of a model whose very last weight is `last`."""
    folder.mkdir()
    write_byte_level_model(folder)
    file = folder / "model.safetensors"
    weights = torch.zeros(MANY)
    weights[-1] = last
    save_file(load_file(file) | {"zzz": weights}, file)
    return load_model(str(folder), torch.float32).weights_fingerprint


def test_the_last_weight_counts(tmp_path: Path) -> None:
    first, second, third = (
        fingerprint(tmp_path / "a", 1.0),
        fingerprint(tmp_path / "b", 2.0),
        fingerprint(tmp_path / "c", 1.0),
    )
    assert first == third
    assert first != second
