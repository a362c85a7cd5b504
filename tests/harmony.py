"""A tokenizer and a chat template of gpt-oss's kind, and a tiny random model that has them."""

import json
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from coordinator.tokenizer import Tokenizer
from coordinator.tools.harmony import Mark
from paceline.engine.models.dummy import dummy_config, make_dummy

EOS = "<|endoftext|>"
# Writes one call of a message, and reasoning only beside calls or in the last message.
TEMPLATE = (
    "<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}{% for t in tools or [] %}{{ ' ' + t.function.name + t.function.description }}{% endfor %}"
    "<|end|>{% for m in messages %}{% if m.role == 'tool' %}<|start|>functions.{{ m.name }} to=assistant<|channel|>commentary"
    "<|message|>{{ m.content | tojson }}<|end|>{% elif m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
    "{% else %}{% if m.tool_calls and m.content and m.thinking %}{{ raise_exception('both') }}{% endif %}"
    "{% set r = (m.content or m.thinking) if m.tool_calls else (m.thinking if loop.last and not add_generation_prompt) %}"
    "{% if r %}<|start|>assistant<|channel|>analysis<|message|>{{ r }}<|end|>{% endif %}{% if m.tool_calls %}"
    "{% set c = m.tool_calls[0].function %}<|start|>assistant to=functions.{{ c.name }}<|channel|>commentary json<|message|>"
    "{{ c.arguments | tojson }}<|call|>{% else %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)


def harmony_tokenizer_files(template: str = TEMPLATE) -> dict[str, bytes]:
    """A token for each byte, and the marks."""
    alphabet = [EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Backend(models.BPE({each: at for at, each in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS, *(mark.value for mark in Mark)])
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, "eos_token": EOS}
    return {"tokenizer.json": backend.to_str().encode(), "tokenizer_config.json": json.dumps(settings).encode()}


@cache
def tokenizer_of(template: str = TEMPLATE) -> Tokenizer:
    return Tokenizer(harmony_tokenizer_files(template))


def write_harmony_model(folder: Path) -> None:
    """Has the shape of dummy:tiny."""
    dummy_config("tiny").save_pretrained(folder)
    save_file(make_dummy("tiny", torch.float32)[1], folder / "model.safetensors")
    for name, data in harmony_tokenizer_files().items():
        (folder / name).write_bytes(data)
