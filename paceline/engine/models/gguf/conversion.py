"""Converts GGUF files to model folders, once, with transformers."""

import hashlib
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from filelock import FileLock
from safetensors import SafetensorError

from paceline.cache_folder import cache_folder
from paceline.engine.models.gguf.file import read_gguf
from paceline.errors import ConfigError

# Changes when what `_convert` writes changes.
FORMAT = 6


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
    progress(f"converting {file.name}, once (about 20 s)")
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
    in_place = read_gguf(file)
    # Slow imports that a file read in place does not need.
    from transformers import AutoModelForCausalLM, GgufConfig

    try:
        model = AutoModelForCausalLM.from_pretrained(
            file.parent, gguf_file=file.name, dtype=dtype, quantization_config=GgufConfig(dequantize=True)
        )
        # transformers reads neither their scaling nor the factors that divide them (Llama 3.1 and later).
        model.config.rope_parameters = in_place.config.rope_parameters
        # It reads only one of the keys that name end tokens, and has a default.
        model.config.eos_token_id = model.generation_config.eos_token_id = in_place.config.eos_token_id
    except Exception as error:  # transformers and gguf raise many types for files they can't read
        raise ConfigError(f"model {str(file)!r} could not be read: {str(error).splitlines()[0]}") from error
    model.save_pretrained(folder)
    for name, content in in_place.tokenizer_files.items():
        (folder / name).write_bytes(content)
