"""Converts a GGUF file's vocabulary to Hugging Face tokenizer files."""

import logging
import re
import tempfile
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors
from transformers import PreTrainedTokenizerFast

from paceline.engine.models.gguf.header import TEMPLATE, Header
from paceline.engine.models.gguf.pre_tokenizers import DEFAULT, find_splitting
from paceline.errors import ConfigError

log = logging.getLogger(__name__)

# The tokenizer's name for a token -> llama.cpp's key for its id.
_NAMED_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}
# llama.cpp's types of tokens that text never becomes by merging.
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
# A space in a sentencepiece vocabulary.
_SPACE = "▁"
# A file does not say that Phi-3's control tokens take the white space after them, all but these. Its name does.
_PHI3 = re.compile("phi[-_ ]?3", re.IGNORECASE)
_PHI3_STILL = ("<unk>", "<s>", "<|endoftext|>")


def tokenizer_files(header: Header) -> dict[str, bytes]:
    """Builds the tokenizer. Raises ConfigError, naming the key, if the vocabulary is not supported or invalid."""
    _require_vocabulary(header)
    try:
        backend = _BUILDERS[header.metadata["tokenizer.ggml.model"]](header)
        _add_tokens(backend, header)
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **_settings(header))
    except ConfigError:
        raise
    except Exception as error:  # tokenizers raises bare Exception for a vocabulary that it can't use
        reason = next(iter(str(error).splitlines()), repr(error))
        raise ConfigError(f"its tokenizer could not be read: {reason}") from error
    with tempfile.TemporaryDirectory() as folder:
        # Several chat templates would be files in a folder of their own; here they are a list in the config.
        tokenizer.save_pretrained(folder, save_jinja_files=isinstance(tokenizer.chat_template, str))
        return {file.name: file.read_bytes() for file in Path(folder).iterdir()}


def _require_vocabulary(header: Header) -> None:
    kind, tokens = header.metadata.get("tokenizer.ggml.model"), header.metadata.get("tokenizer.ggml.tokens")
    if kind not in _BUILDERS:
        raise ConfigError(f"its tokenizer.ggml.model {kind!r} is not supported; supported: {', '.join(_BUILDERS)}")
    if not isinstance(tokens, list) or not tokens:
        raise ConfigError("its metadata has no tokenizer.ggml.tokens")
    for key in _NAMED_TOKENS.values():
        token_id = header.metadata.get(f"tokenizer.ggml.{key}", 0)
        if not 0 <= token_id < len(tokens):
            raise ConfigError(f"its tokenizer.ggml.{key} is {token_id}; it must be from 0 to {len(tokens) - 1}")


def _byte_level(header: Header) -> Tokenizer:
    """Builds byte-level BPE as in GPT-2, with the file's merges and the named split."""
    name = header.metadata.get("tokenizer.ggml.pre")
    if name is None:
        log.warning(
            "the file has no tokenizer.ggml.pre: text is split as by default, perhaps not as the model learned it"
        )
    splitting = find_splitting(name or DEFAULT)
    merges = [tuple(merge.split(" ", 1)) for merge in header.metadata.get("tokenizer.ggml.merges", ())]
    backend = Tokenizer(models.BPE(_vocabulary(header), merges, ignore_merges=splitting.ignores_merges))
    if splitting.normalizer is not None:
        backend.normalizer = splitting.normalizer
    backend.pre_tokenizer, backend.decoder = splitting.pre_tokenizer, decoders.ByteLevel()
    _add_bos(backend, header, splitting.adds_bos)
    return backend


def _sentencepiece(header: Header) -> Tokenizer:
    """Builds BPE over whole texts as in Llama 2: merges by the score of the resulting token."""
    metadata, vocabulary = header.metadata, _vocabulary(header)
    tokens = metadata["tokenizer.ggml.tokens"]
    scores = dict(zip(tokens, metadata.get("tokenizer.ggml.scores", ()), strict=False))
    types = metadata.get("tokenizer.ggml.token_type", ())
    merged = {token for token, kind in zip(tokens, types, strict=False) if kind not in (_UNKNOWN, _CONTROL)} or set(
        tokens
    )
    pairs = [
        (-scores.get(token, 0.0), vocabulary[token], token[:cut], token[cut:])
        for token in merged
        for cut in range(1, len(token))
        if token[:cut] in vocabulary and token[cut:] in vocabulary
    ]
    unknown = metadata.get("tokenizer.ggml.unknown_token_id")
    merges = [(left, right) for _, _, left, right in sorted(pairs)]
    model = models.BPE(
        vocabulary, merges, unk_token=None if unknown is None else tokens[unknown], fuse_unk=True, byte_fallback=True
    )
    backend = Tokenizer(model)
    adds_space = metadata.get("tokenizer.ggml.add_space_prefix", True)
    replace = normalizers.Replace(" ", _SPACE)
    backend.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), replace]) if adds_space else replace
    decode = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    backend.decoder = decoders.Sequence([*decode, *([decoders.Strip(" ", 1, 0)] if adds_space else [])])
    _add_bos(backend, header, True)
    return backend


# By the file's tokenizer.ggml.model.
_BUILDERS = {"gpt2": _byte_level, "llama": _sentencepiece}


def _vocabulary(header: Header) -> dict[str, int]:
    return {token: index for index, token in enumerate(header.metadata["tokenizer.ggml.tokens"])}


def _add_bos(backend: Tokenizer, header: Header, by_default: bool) -> None:
    metadata = header.metadata
    around = {
        "bos": metadata.get("tokenizer.ggml.add_bos_token", by_default),
        "eos": metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    ids = {name: metadata.get(f"tokenizer.ggml.{name}_token_id") for name, wanted in around.items() if wanted}
    named = {name: metadata["tokenizer.ggml.tokens"][index] for name, index in ids.items() if index is not None}
    if named:
        single = " ".join(filter(None, (named.get("bos"), "$A", named.get("eos"))))
        special = [(token, ids[name]) for name, token in named.items()]
        backend.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)


def _add_tokens(backend: Tokenizer, header: Header) -> None:
    pairs = list(
        zip(
            header.metadata["tokenizer.ggml.tokens"], header.metadata.get("tokenizer.ggml.token_type", ()), strict=False
        )
    )
    takes_space = _is_phi3(header)

    def added(token: str, special: bool) -> AddedToken:
        return AddedToken(token, normalized=False, special=special, rstrip=takes_space and token not in _PHI3_STILL)

    backend.add_special_tokens([added(token, True) for token, kind in pairs if kind in (_UNKNOWN, _CONTROL)])
    backend.add_tokens([added(token, False) for token, kind in pairs if kind == _USER_DEFINED])


def _is_phi3(header: Header) -> bool:
    """Returns whether the vocabulary is Phi-3's: by the model's name as in llama.cpp, or of this architecture, Llama 2's."""
    named = _PHI3.search(header.metadata.get("general.name", ""))
    is_llama2s = header.metadata["tokenizer.ggml.model"] == "llama"
    return named is not None or (header.architecture == "phi3" and is_llama2s)


def _settings(header: Header) -> dict[str, Any]:
    tokens = header.metadata["tokenizer.ggml.tokens"]
    ids = {name: header.metadata.get(f"tokenizer.ggml.{key}") for name, key in _NAMED_TOKENS.items()}
    settings = {name: None if index is None else tokens[index] for name, index in ids.items()}
    return settings | {"chat_template": _chat_template(header)}


def _chat_template(header: Header) -> str | list[dict[str, str]] | None:
    """Returns the template, or several with their names."""
    default: str | None = header.metadata.get(TEMPLATE)
    named = {
        key.removeprefix(f"{TEMPLATE}."): each
        for key, each in header.metadata.items()
        if key.startswith(f"{TEMPLATE}.")
    }
    if not named:
        return default
    templates = named if default is None else {"default": default, **named}
    return [{"name": name, "template": each} for name, each in templates.items()]
