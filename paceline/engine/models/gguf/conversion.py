"""Converts GGUF files to model folders, once."""

import hashlib
import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError
from safetensors.torch import save_file

from paceline.cache_folder import cache_folder
from paceline.engine.models.gguf.file import read_gguf
from paceline.engine.models.gguf.tensors import dequantized
from paceline.errors import ConfigError

# Changes when what `_convert` writes changes.
FORMAT = 9


def converted(file: Path, dtype: torch.dtype, progress: Callable[[str], None]) -> Path:
    """Returns the folder with the file's model in `dtype`, made on first use under a digest of the file.

    Raises ConfigError if the file can't be read or the folder can't be written.
    """
    name = f"{file.stem}-{_digest(file)}-{str(dtype).removeprefix('torch.')}"
    folder = cache_folder() / name
    try:
        if not folder.is_dir():
            folder.parent.mkdir(parents=True, exist_ok=True)
            # Draft and target often start together with one model: the second waits for the first.
            with FileLock(folder.parent / f"{name}.lock"):
                _fill(folder, file, dtype, progress)
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(
            f"model {str(file)!r} can't be converted into {folder.parent}: {reason}; "
            "set PACELINE_CACHE_DIR to another folder"
        ) from error
    return folder


def _fill(folder: Path, file: Path, dtype: torch.dtype, progress: Callable[[str], None]) -> None:
    if folder.is_dir():
        return
    progress(f"converting {file.name}, once")
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        _convert(file, dtype, Path(scratch) / "model")
        (Path(scratch) / "model").rename(folder)


def _digest(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256")
    except OSError as error:
        raise ConfigError(f"model {str(file)!r} could not be read: {error}") from error
    digest.update(f":{FORMAT}".encode())
    return digest.hexdigest()[:16]


def _convert(file: Path, dtype: torch.dtype, folder: Path) -> None:
    model = read_gguf(file)
    tensors = {name: torch.from_numpy(dequantized(tensor)).to(dtype) for name, tensor in model.tensors.items()}
    # The class of the config has no type.
    config = model.config.to_dict() | {"model_type": model.config.model_type}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    for name, content in model.tokenizer_files.items():
        (folder / name).write_bytes(content)
