"""A model's tokenizer and chat template, read without its weights."""

import torch

from paceline.engine.models.gguf.file import read_gguf
from paceline.engine.models.weights import find_folder, find_gguf, read_tokenizer_files
from paceline.errors import ConfigError


def load_tokenizer_files(model: str) -> dict[str, bytes]:
    """Returns the files of a model's tokenizer by name. Raises ConfigError.

    `model`: as in `--model`: a folder, a GGUF file, a known name or a hub id.
    """
    if (file := find_gguf(model)) is not None:
        return read_gguf(file).tokenizer_files
    folder = find_folder(model, torch.bfloat16, lambda _: None)
    files = read_tokenizer_files(model, folder)
    if "tokenizer.json" not in files:
        raise ConfigError(f"model {model!r}: {folder} has no tokenizer.json")
    return files
