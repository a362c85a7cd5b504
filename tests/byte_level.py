"""A tiny random model whose tokenizer is a real one: byte-level BPE with special tokens and a chat template."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from paceline.engine.models.dummy import dummy_config, make_dummy

TEXT = "Élodie says 東京は夜 🎉👨‍👩‍👧 \t\n  twice: नमस्ते. def main(): return [the, same, words, again]\n"
SPECIAL = ("<eos>", "<bos>", "<pad>")
# Shows everything it is given.
TEMPLATE = (
    "{% for message in messages %}[{{ message.role }}]{{ message.content }}{% endfor %}"
    "{% if mood is defined %}({{ mood }}){% endif %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


def write_byte_level_model(folder: Path) -> None:
    """Has the shape of dummy:tiny; id 0 ends a text."""
    config = dummy_config("tiny")
    config.save_pretrained(folder)
    save_file(make_dummy("tiny", torch.float32)[1], folder / "model.safetensors")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    # Fewer than the model has ids, as with models whose vocabulary is filled up.
    trainer = trainers.BpeTrainer(
        vocab_size=config.vocab_size - 100, initial_alphabet=alphabet, special_tokens=list(SPECIAL), show_progress=False
    )
    backend.train_from_iterator([TEXT] * 3, trainer)
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 1)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<eos>", bos_token="<bos>", pad_token="<pad>"
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
