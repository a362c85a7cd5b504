"""What a chat template puts around a user's turn, as tokens."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerFast

from paceline.errors import ConfigError

_MARK = "\u2063paceline\u2063"


def read_tokenizer(files: dict[str, bytes]) -> PreTrainedTokenizerFast:
    """`files`: name -> content, as a loaded model has them."""
    with tempfile.TemporaryDirectory() as folder:
        for name, data in files.items():
            (Path(folder) / name).write_bytes(data)
        tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(folder)
    return tokenizer


@dataclass(frozen=True, slots=True)
class ChatFrame:
    """A conversation of one turn is `before`, the user's words, `after`, the answer, and an EOS token."""

    before: list[int]
    after: list[int]

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerFast) -> "ChatFrame":
        """Raises ConfigError for a model without a chat template, or with one that changes what users say."""
        if tokenizer.chat_template is None:
            raise ConfigError("the target has no chat template; distillation needs one to have it write conversations")
        turn = [{"role": "user", "content": _MARK}]
        text = tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
        before, mark, after = text.partition(_MARK)
        if not mark:
            raise ConfigError("the target's chat template does not contain the user's turn as it is")
        return cls(*(tokenizer.encode(part, add_special_tokens=False) for part in (before, after)))
