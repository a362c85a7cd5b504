"""A GGUF file's vocabulary -> the files of a tokenizer of Hugging Face."""

import tempfile
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig, PreTrainedTokenizerFast
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES, tokenizer_class_from_name

from paceline.engine.models.gguf.header import Header
from paceline.errors import ConfigError

# The tokenizer's name for a token -> llama.cpp's key for its id.
_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def tokenizer_files(header: Header, config: PreTrainedConfig) -> dict[str, bytes]:
    """The files that `AutoTokenizer.from_pretrained(gguf_file=...)` would save, without its two further readings.

    Only what it notes of the way it came to them, "is_local" and "local_files_only", is not there.

    Raises ConfigError if transformers can't make a tokenizer of the vocabulary.
    """
    # Here and not above: older releases of transformers have them elsewhere, and other models do without.
    from transformers.integrations.gguf import convert_gguf_tokenizer

    known = TOKENIZER_MAPPING_NAMES.get(config.model_type)
    kind = PreTrainedTokenizerFast if known is None else tokenizer_class_from_name(known)
    try:
        backend, settings = convert_gguf_tokenizer(header.architecture, _entries(header, "tokenizer"))
        tokenizer = kind(tokenizer_object=backend, **_settings(header), **settings)
    except Exception as error:  # transformers and tokenizers raise many types for a vocabulary they can't use
        reason = next(iter(str(error).splitlines()), repr(error))
        raise ConfigError(f"its tokenizer could not be read: {reason}") from error
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _settings(header: Header) -> dict[str, Any]:
    """Named tokens, the chat template, and whether texts begin with bos: as transformers reads them."""
    tokens = header.metadata["tokenizer.ggml.tokens"]
    settings = _entries(header, "tokenizer_config")
    if header.metadata.get("tokenizer.ggml.model") == "llama":
        settings.setdefault("add_bos_token", True)
    for name, key in _NAMED_TOKENS.items():
        token_id = header.metadata.get(f"tokenizer.ggml.{key}")
        settings[name] = None if token_id is None else tokens[token_id]
    return settings


def _entries(header: Header, group: str) -> dict[str, Any]:
    """The metadata in one group of transformers' table, under transformers' names."""
    from transformers.integrations.gguf import GGUF_TOKENIZER_MAPPING

    names = {f"tokenizer.{key}": name for key, name in GGUF_TOKENIZER_MAPPING[group].items()}
    return {name: header.metadata[key] for key, name in names.items() if key in header.metadata}
