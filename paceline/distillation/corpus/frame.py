"""The chat frame: the tokens that a chat template puts around a user's message."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from paceline.errors import ConfigError

_MARK = "\u2063paceline\u2063"


def read_tokenizer(files: dict[str, bytes]) -> PreTrainedTokenizerFast:
    """Makes a tokenizer. `files`: name -> content, as in `LoadedModel.tokenizer_files`."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """A conversation is `before`, the user's message, `after`, the answer, and an EOS token."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "ChatFrame":
        """The frame of a model's tokenizer.

        Raises ConfigError if the model has no chat template, or if the template changes the user's message.
        """
        if tokenizer.chat_template is None:
            raise ConfigError("the target has no chat template; distillation needs one to have it write conversations")
        message = [{"role": "user", "content": _MARK}]
        text = tokenizer.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
        before, mark, after = text.partition(_MARK)
        if not mark:
            raise ConfigError("the target's chat template does not contain the user's turn as it is")
        return cls(*(tokenizer.encode(part, add_special_tokens=False) for part in (before, after)))
