"""A tiny random model that thinks: a byte-level tokenizer with marks around reasoning and calls, and a chat template."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from paceline.engine.models.dummy import dummy_config, make_dummy

EOS, THINK, END_THINK, CALL, END_CALL = NAMES = ("<eos>", "<think>", "</think>", "<tool_call>", "</tool_call>")
EOS_ID = 0
# As Qwen3's, but with `enable_thinking` its generation prompt opens the reasoning.
TEMPLATE = (
    "{% for each in tools or [] %}{{ each | tojson }}{% endfor %}{% for each in messages %}[{{ each.role }}]"
    "{% if each.reasoning_content %}<think>\n{{ each.reasoning_content }}\n</think>\n\n{% endif %}{{ each.content }}{% endfor %}"
    "{{ reasoning_effort }}{% if add_generation_prompt %}[assistant]{% if enable_thinking is defined %}<think>\n"
    "{% if not enable_thinking %}\n</think>\n\n{% endif %}{% endif %}{% endif %}"
)


def make_backend(has_special_marks: bool) -> Tokenizer:
    """A token for each byte, and the marks."""
    alphabet = [EOS, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({each: at for at, each in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([EOS])
    marks = [AddedToken(name, special=has_special_marks, normalized=False) for name in NAMES[1:]]
    (backend.add_special_tokens if has_special_marks else backend.add_tokens)(marks)
    return backend


def thinking_tokenizer_files(has_special_marks: bool = False) -> dict[str, bytes]:
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "eos_token": EOS}
    return {
        "tokenizer.json": make_backend(has_special_marks).to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
    }


def write_thinking_model(folder: Path) -> None:
    """Has the shape of dummy:tiny."""
    dummy_config("tiny").save_pretrained(folder)
    save_file(make_dummy("tiny", torch.float32)[1], folder / "model.safetensors")
    for name, data in thinking_tokenizer_files().items():
        (folder / name).write_bytes(data)
