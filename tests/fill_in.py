"""Tokenizers of models that fill in the middle, and a tiny random model with one."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from paceline.engine.models.dummy import dummy_config, make_dummy

EOS, BOS = "<eos>", "<bos>"
QWEN = PREFIX, SUFFIX, MIDDLE, PAD, REPOSITORY, FILE = (
    "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>", "<|repo_name|>", "<|file_sep|>",
)  # fmt: skip
GRANITE = ("<fim_prefix>", "<fim_suffix>", "<fim_middle>", "<fim_pad>")
DEEPSEEK = ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>")


def make_backend(names: tuple[str, ...], adds_bos: bool = False) -> Tokenizer:
    """A token for each byte, EOS and BOS, and these names. As in Qwen's own files, they are not marked as special."""
    alphabet = [EOS, BOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({each: at for at, each in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS, BOS])
    backend.add_tokens([AddedToken(name, special=False, normalized=False) for name in names])
    if adds_bos:
        backend.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, 1)])
    return backend


def tokenizer_files(names: tuple[str, ...] = QWEN, adds_bos: bool = False) -> dict[str, bytes]:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "bos_token": BOS}
    return {
        "tokenizer.json": make_backend(names, adds_bos).to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


def write_fill_in_model(folder: Path) -> None:
    """Has the shape of dummy:tiny."""
    dummy_config("tiny").save_pretrained(folder)
    save_file(make_dummy("tiny", torch.float32)[1], folder / "model.safetensors")
    for name, data in tokenizer_files().items():
        (folder / name).write_bytes(data)
