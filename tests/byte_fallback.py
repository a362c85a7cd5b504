"""A tiny random model with a tokenizer as Llama 2 has it: text without other tokens becomes one token per byte.

Half of its ids are such bytes, so most of what the model writes is no UTF-8.
"""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, normalizers
from transformers import PreTrainedTokenizerFast

from paceline.engine.models.dummy import dummy_config, make_dummy
from tests.byte_level import TEMPLATE

SPECIAL = ("<unk>", "<s>", "</s>")


def byte_fallback_tokenizer(vocab_size: int = 512) -> Tokenizer:
    """Without merges: a text becomes characters, of which letters and digits are known."""
    pieces = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz0123456789.é東"]
    pieces += [f"▁t{number}" for number in range(vocab_size - len(pieces))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def write_byte_fallback_model(folder: Path) -> None:
    """Has the shape of dummy:tiny; id 0 ends a text."""
    dummy_config("tiny").save_pretrained(folder)
    save_file(make_dummy("tiny", torch.float32)[1], folder / "model.safetensors")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_fallback_tokenizer(), unk_token="<unk>", bos_token="<s>", eos_token="</s>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
